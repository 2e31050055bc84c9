"""The server's doors: ASGI classes, each for one kind of URL, and the middleware around them."""
