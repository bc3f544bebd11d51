"""What ``scripts/check_compose`` is made of: docker-compose from outside, and one client."""
