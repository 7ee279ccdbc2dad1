"""What ``octavo bench`` measures: a server from outside, or an engine in this process."""
