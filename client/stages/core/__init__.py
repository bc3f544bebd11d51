"""The decisions of the stages library: which step comes next, what is sent, under which id, and when. No I/O.

retry       how many attempts, and how long between them
retention   how long an inbox must know a message
envelope    a message as it travels; the names of its headers
sends       what one stage or initiation sends, with ids that a second run gives again
fault       what a dead letter says of the exception
steps       what an edge is asked to do
initiating  one initiation, from its begin to its end, as a generator of steps
ordering    messages of one key, one after the other
letter      dead letters, and what an operator makes of one
handling    one delivery, from its arrival to its acknowledgement, as a generator of steps
"""
