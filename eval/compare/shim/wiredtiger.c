/*
 * WiredTiger's handles are structs of function pointers, and several of its functions have variable
 * arguments. This shim has a plain C function for each call that the adapter needs;
 * src/peers/wiredtiger.rs declares these functions.
 *
 * Results: 0 success, 1 not found, 2 conflict with another transaction (run the transaction again),
 * anything else an error code of WiredTiger.
 */
#include <stddef.h>
#include <wiredtiger.h>

static int
result(int ret)
{
	if (ret == WT_NOTFOUND)
		return (1);
	if (ret == WT_ROLLBACK)
		return (2);
	return (ret);
}

int
azb_wt_open(const char *home, const char *config, WT_CONNECTION **conn)
{
	return (result(wiredtiger_open(home, NULL, config, conn)));
}

int
azb_wt_close(WT_CONNECTION *conn)
{
	return (result(conn->close(conn, NULL)));
}

int
azb_wt_create_table(WT_CONNECTION *conn)
{
	WT_SESSION *session;
	int ret, closed;

	if ((ret = conn->open_session(conn, NULL, NULL, &session)) != 0)
		return (result(ret));
	ret = session->create(session, "table:kv", "key_format=u,value_format=u");
	closed = session->close(session, NULL);
	return (result(ret != 0 ? ret : closed));
}

/* Opens a session with isolation=snapshot, and a cursor that overwrites existing records. */
int
azb_wt_session(WT_CONNECTION *conn, WT_SESSION **session, WT_CURSOR **cursor)
{
	int ret;

	if ((ret = conn->open_session(conn, NULL, "isolation=snapshot", session)) != 0)
		return (result(ret));
	if ((ret = (*session)->open_cursor(*session, "table:kv", NULL, NULL, cursor)) != 0)
		(void)(*session)->close(*session, NULL);
	return (result(ret));
}

int
azb_wt_session_close(WT_SESSION *session)
{
	return (result(session->close(session, NULL)));
}

int
azb_wt_begin(WT_SESSION *session)
{
	return (result(session->begin_transaction(session, NULL)));
}

int
azb_wt_commit(WT_SESSION *session)
{
	return (result(session->commit_transaction(session, NULL)));
}

int
azb_wt_rollback(WT_SESSION *session)
{
	return (result(session->rollback_transaction(session, NULL)));
}

int
azb_wt_put(WT_CURSOR *cursor, const void *key, size_t key_len, const void *value, size_t value_len)
{
	WT_ITEM k, v;

	k.data = key;
	k.size = key_len;
	v.data = value;
	v.size = value_len;
	cursor->set_key(cursor, &k);
	cursor->set_value(cursor, &v);
	return (result(cursor->insert(cursor)));
}

int
azb_wt_remove(WT_CURSOR *cursor, const void *key, size_t key_len)
{
	WT_ITEM k;

	k.data = key;
	k.size = key_len;
	cursor->set_key(cursor, &k);
	return (result(cursor->remove(cursor)));
}

/* Returns the value of a key. The value is valid until the next call with the cursor. */
int
azb_wt_get(WT_CURSOR *cursor, const void *key, size_t key_len, const void **value, size_t *value_len)
{
	WT_ITEM k, v;
	int ret;

	k.data = key;
	k.size = key_len;
	cursor->set_key(cursor, &k);
	if ((ret = cursor->search(cursor)) != 0 || (ret = cursor->get_value(cursor, &v)) != 0)
		return (result(ret));
	*value = v.data;
	*value_len = v.size;
	return (0);
}

/* Moves the cursor to the first key that is not below the given one. */
int
azb_wt_seek(WT_CURSOR *cursor, const void *key, size_t key_len)
{
	WT_ITEM k;
	int exact, ret;

	if (key_len == 0) {
		if ((ret = cursor->reset(cursor)) != 0)
			return (result(ret));
		return (result(cursor->next(cursor)));
	}
	k.data = key;
	k.size = key_len;
	cursor->set_key(cursor, &k);
	if ((ret = cursor->search_near(cursor, &exact)) != 0)
		return (result(ret));
	return (exact < 0 ? result(cursor->next(cursor)) : 0);
}

/* Returns the key and value at the cursor. Both are valid until the next call with the cursor. */
int
azb_wt_item(WT_CURSOR *cursor, const void **key, size_t *key_len, const void **value, size_t *value_len)
{
	WT_ITEM k, v;
	int ret;

	if ((ret = cursor->get_key(cursor, &k)) != 0 || (ret = cursor->get_value(cursor, &v)) != 0)
		return (result(ret));
	*key = k.data;
	*key_len = k.size;
	*value = v.data;
	*value_len = v.size;
	return (0);
}

int
azb_wt_next(WT_CURSOR *cursor)
{
	return (result(cursor->next(cursor)));
}

int
azb_wt_prev(WT_CURSOR *cursor)
{
	return (result(cursor->prev(cursor)));
}

int
azb_wt_reset(WT_CURSOR *cursor)
{
	return (result(cursor->reset(cursor)));
}

const char *
azb_wt_error(int code)
{
	return (wiredtiger_strerror(code));
}

const char *
azb_wt_version(void)
{
	return (wiredtiger_version(NULL, NULL, NULL));
}
