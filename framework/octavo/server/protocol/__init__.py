"""What the routes' bodies look like, and what each field does."""
