"""The state server: ``understudy state-server``. A passive register of transactions, their branches and decisions.

It never calls a resource manager and holds no address or password of one. `core.register.state` decides, `server` is the asyncio
edge, `file_disk` the folder.
"""
