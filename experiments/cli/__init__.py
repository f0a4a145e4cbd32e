"""What the commands share: options, plans, displays, locks."""
