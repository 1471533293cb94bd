"""The consumer that receives and acknowledges single messages."""
