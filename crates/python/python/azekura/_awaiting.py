"""Tickets and transactions under asyncio."""

import functools

# asyncio is imported only by the functions that need it, because its import takes longer than the rest of
# this package.


def _settle(future, ticket, watch):
    """Settles the future if the commit is durable or has failed. Runs in the event loop."""
    if future.done():
        return
    try:
        is_durable = ticket.durable
    except Exception as error:
        future.set_exception(error)
        return
    if is_durable:
        future.set_result(None)
    else:
        watch()


def durable(ticket):
    """Returns a future of the running loop that is done when the ticket's commit is durable."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def watch():
        # The callback may run in another thread, and after the loop was closed.
        def call():
            try:
                loop.call_soon_threadsafe(_settle, future, ticket, watch)
            except RuntimeError:
                pass

        ticket._notify(call)

    watch()
    return future


def ticket_await(self):
    return durable(self).__await__()


async def transact_async(self, body, *, retry_time=30.0):
    """Runs `body` with a transaction as `transact` does, in a thread of the loop's default executor, because
    `body` may wait for locks. The thread is released while the commit waits for the disk."""
    import asyncio

    loop = asyncio.get_running_loop()
    value, ticket = await loop.run_in_executor(None, self._transact_nowait, body, retry_time)
    await durable(ticket)
    return value


def transaction(self, function):
    """Decorator: each call runs the function by `transact`, with the transaction as its first argument."""
    self._refuse_generator(function)

    @functools.wraps(function)
    def run(*args, **named):
        return self.transact(lambda tx: function(tx, *args, **named))

    return run
