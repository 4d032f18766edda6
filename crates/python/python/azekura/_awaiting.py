"""Tickets and transactions under asyncio."""

import functools

# asyncio is imported by the calls that need it: it would be most of the time of importing this package.


def _settle(future, ticket, watch):
    """Runs in the event loop when the ticket may have been decided."""
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
    """Returns a future of the running loop that is done when the ticket's commit survives power loss."""
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def watch():
        # The callback may come from another thread, and after the loop was closed.
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


async def transact_async(self, body):
    """Runs `body` with a transaction as `transact` does, in a thread of the loop's default executor: it may
    wait for locks. The thread is free again while the commit waits for the disk."""
    import asyncio

    loop = asyncio.get_running_loop()
    value, ticket = await loop.run_in_executor(None, self._transact_nowait, body)
    await durable(ticket)
    return value


def transaction(self, function):
    """Decorator: each call of the function runs as `transact`, with the transaction as its first argument."""

    @functools.wraps(function)
    def run(*args, **named):
        return self.transact(lambda tx: function(tx, *args, **named))

    return run
