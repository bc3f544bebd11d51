"""The protocol as it is built, as a model that is explored completely within bounds.

The simulator runs the real code and sees some of what can happen; this model is small and sees all of it: every order of steps,
with so many crashes, lost answers, refusals and ex-primaries as its bounds allow. It states the promises of DESIGN 1 for every
state (``promises``), and that progress stays possible (``goals``).

    python -m pytest tests/model                            what is explored at every check
    python -m tests.model --configurations                  the same as a table, with counts and times
    python -m tests.model --larger                          larger ones, for changes of the protocol
    python -m tests.model --bounds brokers=3 crashes=2 --goals live
    python -m tests.model --mutation expelled-after         a known bug, and the story of how it breaks a promise
    python -m tests.model --mutations                       all of them as a table

==================  =================================================================================================
``records``         the log: record kinds of broker/log/record.py, and what a log says
``state``           a broker, a primary's role, its view of each backup, the world; bounds
``rules``           the form of a step
``client_steps``    publish, acknowledge, move, commit, prepare, roll back, ask
``manager_steps``   what the manager of a branch says once it is prepared, and what it takes answers for
``broker_steps``    fsync, crash, restart, a lost data directory, stepping down
``link_steps``      SYNC, RESUME, BATCH, STABLE, ACK, NO
``catch_up_steps``  CATCH_UP, IDS, BASE, DROP, TRANSACTION, QUEUE, CAUGHT_UP
``set_steps``       guard, in-sync set, requests and answers of the store
``promotion_steps`` campaigns, promotion
``settling``        stable position, decision, becoming active: what a primary does at the end of its turn
``promises``        what must hold in every state
``goals``           what must stay reachable
``moves, search``   the walk; ``story`` tells of it
``configurations``  what is explored at every check
``mutations``       known bugs, each of which must be found; which are not here, and why
==================  =================================================================================================

What is left out or put together, and why nothing is lost by it:

* One record is one batch. Batches of several are the cases in which nothing happens between.
* A link's messages are heard when they are said, or the link is lost. What they say does not become untrue on that link, so a late
  message is one that was sent late. The exception is the store: its requests are on their way, and land late or never
  (``set_steps``, ``promotion_steps``).
* A time-out, a session that ends, a connection that is refused are steps that may come at any moment. So a primary may be replaced
  although it lives (``Bounds.takeovers``), and goes on for as long as it likes.
* A primary draws its conclusions at once (``settling``).
* What stands beyond ``World.chosen``, the longest prefix that any primary ever took for stable, is applied nowhere. All of it may
  be applied anywhere, delivered, confirmed: promises are stated for ``chosen`` and not for each broker's applied position.
* What a backup was told of the stable position decides nothing once it is promoted: the tail becomes stable anew. So it is kept
  (``Broker.sure``) for those mutations alone that break this; a restart keeps it where a batch may have stated it: the worse case.
* One message moves, once, to one queue, and the record has no body. A MOVE with a body is an ENQUEUE and a DEQUEUE in one record:
  it needs nothing of the backup.
* There is one transaction. All that joins transactions is their order in the log. It may be a branch (``Bounds.branch``): its
  manager stands outside and forgets nothing, and what it may have been told counts as told.
* Of branches not here: commits in one phase (a local commit), time-outs and sessions that end (a rollback of what is open, at any
  moment), what operators complete, several branches, transient content. What a branch in doubt takes away is locked by who serves:
  the model has no step that would take it.
* A crash loses what was not fsynced, all of it. That a part survives is the case of an fsync just before.
* Not here: topology, expiry, transient messages and refills, credit, low disks, the suspended store (a primary that is alone in its
  set and cannot reach it), founding, unclean promotion (decision 0009), Kafka. The simulator has them as far as they are
  built.
"""
