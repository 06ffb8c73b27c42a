/* Larder's client for C: blocking calls to memcached, Larder and other servers that speak memcached's protocol.
 *
 * This file is generated from clients/c/src by `make larder.h`.
 *
 * A call is a function that returns a status. Statuses from LARDER_STATUS_INVALID_ARGUMENT upward are errors;
 * larder_error_message() and the two functions after it describe the error of the calling thread's last call.
 *
 * Clients, options and values are handles. A handle is valid until it is freed. Any number of threads may use a client
 * at the same time; only one thread at a time may use another handle. Keys and values are bytes with a given length,
 * and may contain zeros; strings are UTF-8 and end with a zero.
 *
 * A call that returns a handle sets its output pointer to NULL if it fails or finds nothing. A NULL argument is an
 * error, unless its length or count is 0 or the function permits NULL. Freeing NULL does nothing.
 *
 * "Safety" lists the requirements that a function cannot check. Readable and writable targets are aligned. During the
 * call, no other thread writes to a readable target or uses a writable one.
 */

#ifndef LARDER_H
#define LARDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The status of a call.
typedef enum {
  // The call succeeded.
  LARDER_STATUS_OK = 0,
  // The item does not exist.
  LARDER_STATUS_NOT_FOUND = 1,
  // The item was not stored, because the call's condition does not hold. Each call documents its
  // condition.
  LARDER_STATUS_NOT_STORED = 2,
  // The item was not stored, because it was changed after its CAS was read.
  LARDER_STATUS_EXISTS = 3,
  // The value to increment or decrement is not a number.
  LARDER_STATUS_NOT_A_NUMBER = 4,
  // An argument is NULL, a string is not UTF-8, or an address or a TLS setting is invalid.
  LARDER_STATUS_INVALID_ARGUMENT = 16,
  // The key is empty or too long.
  LARDER_STATUS_KEY = 17,
  // The value is longer than any server accepts.
  LARDER_STATUS_VALUE_TOO_LONG = 18,
  // The server is unreachable or refuses connections, its name cannot be resolved, or the TLS
  // handshake failed.
  LARDER_STATUS_CONNECT = 19,
  // The server has failed several times in a row, so the call failed without sending a request.
  LARDER_STATUS_UNAVAILABLE = 20,
  // All connections were in use until the deadline.
  LARDER_STATUS_POOL_TIMEOUT = 21,
  // The server did not reply by the deadline.
  LARDER_STATUS_TIMEOUT = 22,
  // The connection failed, or the server closed it.
  LARDER_STATUS_CONNECTION = 23,
  // The server's reply, or an earlier reply on the same connection, does not match its request.
  LARDER_STATUS_UNEXPECTED = 24,
  // The server refused the request. A retry cannot succeed.
  LARDER_STATUS_REFUSED = 25,
  // The server reported an error of its own.
  LARDER_STATUS_SERVER = 26,
  // The server refused the login, or the user name is invalid.
  LARDER_STATUS_LOGIN = 27,
  // The client failed with another error.
  LARDER_STATUS_OTHER = 28,
  // The call panicked because of a bug in this library.
  LARDER_STATUS_PANIC = 29,
} larder_status;

// A client for any number of threads.
typedef struct larder_client larder_client;

// Options for opening a client.
typedef struct larder_options larder_options;

// A value with its flags. A value from larder_gets() or larder_gat() also has a CAS.
typedef struct larder_value larder_value;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Creates options with default values. larder_options_free() frees them.
larder_options *larder_options_new(void);

// Frees options.
//
// # Safety
// `options` is NULL or valid. No thread uses it during or after the call.
void larder_options_free(larder_options *options);

// Sets the time limit of a call in milliseconds. It includes the wait for a connection. 0 counts
// as 1. [Default: 1000]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it.
larder_status larder_options_timeout(larder_options *options, uint64_t millis);

// Sets the time limit for opening a connection in milliseconds. 0 counts as 1. The time limit of
// the call also applies. [Default: 250]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it.
larder_status larder_options_connect_timeout(larder_options *options, uint64_t millis);

// Makes each call use a connection of its own from a pool with at most `max` connections per
// server. 0 counts as 1. If all connections are in use, a call waits. [Default: calls share
// connections, one per CPU core and at most 4 per server]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it.
larder_status larder_options_pool(larder_options *options, size_t max);

// Moves the keys of a failed server to other servers. A call that has changed nothing, for example
// because the connection was refused, uses the next server. After five failures of a server in a
// row, calls use the other servers at once, except for probes. Calls that time out and calls whose
// change may have happened still fail. A server that becomes available again without a restart
// still has its old values. [Default: false]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it.
larder_status larder_options_failover(larder_options *options, bool enabled);

// Logs in on each new connection, as memcached with the option -Y requires. The user name must not
// contain spaces, and memcached accepts no spaces in passwords either. larder_open() reports an
// invalid user name. [Default: no login]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it. `user` and `password` are NULL or end
// with a zero.
larder_status larder_options_login(larder_options *options, const char *user, const char *password);

// Encrypts all connections with TLS 1.2 or 1.3. NULL selects the default of an argument:
//
// - `ca_file`: a PEM file with CAs. One of them must have signed the server's certificate.
//   [Default: the CAs of the system]
// - `cert_file`: a PEM file with the client certificate followed by its intermediate CAs, for
//   servers that request a client certificate. [Default: no client certificate]
// - `key_file`: a PEM file with the key of the client certificate. [Default: `cert_file`]
// - `server_name`: the name that the certificates of all servers must contain. [Default: the host
//   of each server; `localhost` for unix sockets]
//
// This call reads the files, and later changes of the files have no effect. If a file or the name
// is unusable, the call returns LARDER_STATUS_INVALID_ARGUMENT and leaves the options unchanged,
// and larder_error_message() names the file. If the certificate of a server is invalid, the calls
// of the client return LARDER_STATUS_CONNECT. [Default: no encryption]
//
// # Safety
// `options` is NULL or valid, and no other thread uses it. The other arguments are NULL or end
// with a zero.
larder_status larder_options_tls(larder_options *options,
                                 const char *ca_file,
                                 const char *cert_file,
                                 const char *key_file,
                                 const char *server_name);

// Opens a client for the server at an address: HOST, HOST:PORT, [V6]:PORT, or the path of a unix
// socket. Separate the addresses of several servers with commas. Rendezvous hashing distributes
// keys over the servers, and the order of the addresses does not matter. `options` may be NULL,
// and may be freed after the call. This call resolves host names. The calls of the client open
// connections on demand. larder_close() closes the client.
//
// # Safety
// `address` is NULL or ends with a zero. `options` is NULL or valid, and no thread changes it
// during the call. `client` is NULL or writable.
larder_status larder_open(const char *address,
                          const larder_options *options,
                          larder_client **client);

// Closes a client and its connections.
//
// # Safety
// `client` is NULL or valid. No thread uses it during or after the call.
void larder_close(larder_client *client);

// Describes the error of this thread's last call. The description is empty if the call returned no
// error. The pointer is valid until the thread's next call.
const char *larder_error_message(void);

// Returns the address of the server at which this thread's last call failed. Returns NULL if the
// call succeeded or its error does not concern one server. The address is valid until the thread's
// next call.
const char *larder_error_server(void);

// Returns whether this thread's last call failed but its requested change may have happened. If
// the call failed and the result is false, the change has not happened and will not happen.
bool larder_error_is_ambiguous(void);

// Reads the value of a key. Returns LARDER_STATUS_NOT_FOUND if the item does not exist.
// larder_value_free() frees the value.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
// writable.
larder_status larder_get(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         larder_value **value);

// Like larder_get(), but also reads the CAS of the value.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
// writable.
larder_status larder_gets(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          larder_value **value);

// Like larder_gets(), but also sets the expiry of the item to `ttl` seconds from now, or to never
// if `ttl` is 0.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or
// writable.
larder_status larder_gat(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         uint32_t ttl,
                         larder_value **value);

// Reads the values of `count` keys. Sends one batch of requests to each server. Writes `count`
// pointers to `values`, in the order of the keys. A pointer is NULL if its item does not exist.
// After an error, all pointers are NULL. larder_value_free() frees each value.
//
// # Safety
// `client` is NULL or valid. `keys` and `key_lens` are NULL or have `count` readable elements.
// Each key is NULL or has the number of readable bytes in `key_lens`. `values` is NULL or has
// `count` writable elements.
larder_status larder_get_many(const larder_client *client,
                              const char *const *keys,
                              const size_t *key_lens,
                              size_t count,
                              larder_value **values);

// Stores a value with flags, whether or not the item exists. The item expires in `ttl` seconds, or
// never if `ttl` is 0.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
// `value_len` readable bytes.
larder_status larder_set(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// Like larder_set(), but stores the value only if the item does not exist. Otherwise returns
// LARDER_STATUS_NOT_STORED.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
// `value_len` readable bytes.
larder_status larder_add(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// Like larder_set(), but stores the value only if the item exists. Otherwise returns
// LARDER_STATUS_NOT_STORED.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
// `value_len` readable bytes.
larder_status larder_replace(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *value,
                             size_t value_len,
                             uint32_t ttl,
                             uint32_t flags);

// Like larder_set(), but stores the value only if the current item has this CAS. Returns
// LARDER_STATUS_EXISTS if the item has another CAS, and LARDER_STATUS_NOT_FOUND if it does not
// exist.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `value` is NULL or has
// `value_len` readable bytes.
larder_status larder_cas(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags,
                         uint64_t cas);

// Appends bytes to a value. Returns LARDER_STATUS_NOT_STORED if the item does not exist.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `more` is NULL or has
// `more_len` readable bytes.
larder_status larder_append(const larder_client *client,
                            const char *key,
                            size_t key_len,
                            const void *more,
                            size_t more_len);

// Prepends bytes to a value. Returns LARDER_STATUS_NOT_STORED if the item does not exist.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `more` is NULL or has
// `more_len` readable bytes.
larder_status larder_prepend(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *more,
                             size_t more_len);

// Removes an item. Returns LARDER_STATUS_NOT_FOUND if the item does not exist.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes.
larder_status larder_delete(const larder_client *client, const char *key, size_t key_len);

// Sets the expiry of an item to `ttl` seconds from now, or to never if `ttl` is 0. Returns
// LARDER_STATUS_NOT_FOUND if the item does not exist.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes.
larder_status larder_touch(const larder_client *client,
                           const char *key,
                           size_t key_len,
                           uint32_t ttl);

// Adds `delta` to a number, modulo 2^64. If the call succeeds and `number` is not NULL, writes the
// new number to `number`. Returns LARDER_STATUS_NOT_FOUND if the item does not exist, and
// LARDER_STATUS_NOT_A_NUMBER if its value is not a number.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `number` is NULL or
// writable.
larder_status larder_incr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Subtracts `delta` from a number, but not below 0. If the call succeeds and `number` is not NULL,
// writes the new number to `number`. Returns LARDER_STATUS_NOT_FOUND if the item does not exist,
// and LARDER_STATUS_NOT_A_NUMBER if its value is not a number.
//
// # Safety
// `client` is NULL or valid. `key` is NULL or has `key_len` readable bytes. `number` is NULL or
// writable.
larder_status larder_decr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Removes all items from every server. After an error, some servers may have removed their items.
//
// # Safety
// `client` is NULL or valid.
larder_status larder_flush(const larder_client *client);

// Returns a pointer to the bytes of a value, or NULL if `value` is NULL. The bytes are valid until
// the value is freed.
//
// # Safety
// `value` is NULL or valid.
const void *larder_value_data(const larder_value *value);

// Returns the length of a value in bytes, or 0 if `value` is NULL.
//
// # Safety
// `value` is NULL or valid.
size_t larder_value_len(const larder_value *value);

// Returns the flags of a value, or 0 if `value` is NULL.
//
// # Safety
// `value` is NULL or valid.
uint32_t larder_value_flags(const larder_value *value);

// Returns the CAS of a value from larder_gets() or larder_gat(). Returns 0 for other values and
// for NULL.
//
// # Safety
// `value` is NULL or valid.
uint64_t larder_value_cas(const larder_value *value);

// Frees a value.
//
// # Safety
// `value` is NULL or valid. No thread uses it during or after the call.
void larder_value_free(larder_value *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LARDER_H */
