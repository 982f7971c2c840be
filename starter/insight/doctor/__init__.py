"""The doctor: checks everything that dormice depends on, and reports for each part what is wrong and what to do."""
