"""What turns text into token ids and back."""
