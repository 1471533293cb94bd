"""What operators ask and change, over all sets."""
