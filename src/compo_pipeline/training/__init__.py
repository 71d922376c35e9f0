"""The one training loop, and what it needs: batches from views, features, optimiser, state."""
