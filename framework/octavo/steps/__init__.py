"""What crosses from host to device in a step: slot fields, the plan, the result, what is loaded."""
