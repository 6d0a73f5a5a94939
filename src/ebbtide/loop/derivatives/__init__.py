"""Time loops in forward mode, over pairs and over batches."""
