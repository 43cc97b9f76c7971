"""What can be asked of the service, one file for each kind of question."""
