"""What all endpoints share: routes, logins, replies, the web socket, the API's documents."""
