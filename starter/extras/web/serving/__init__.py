"""How the application is served: by uvicorn, for the command `serve` and beside the server of `dev`."""
