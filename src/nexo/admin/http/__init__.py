"""The parts that all endpoints share: routes, logins, replies, the web socket, the documents."""
