"""What looks and changes nothing: forecasts of due messages, the board, the checks of the doctor."""
