pytest_plugins = ["mq.testing.fixtures"]
