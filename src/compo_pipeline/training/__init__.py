"""The one training loop and its parts: batches from views, features, optimiser, state."""
