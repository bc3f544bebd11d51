"""Parts of ``scripts/check_compose``: docker-compose from outside, and one client."""
