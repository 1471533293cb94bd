"""A broker set under load for minutes, while its leader is killed again and again."""
