/* Larder's client for C: blocking calls to memcached, Larder and other servers that speak memcached's protocol.
 *
 * This file is generated from clients/c/src by `make larder.h`.
 *
 * Each call returns a status. From LARDER_STATUS_INVALID_ARGUMENT on it is an error, of which larder_error_message() and
 * the functions after it tell more, to the same thread until its next call.
 *
 * A client may be used by any number of threads; every other handle belongs to one thread at a time. A handle is valid until
 * it is freed. Keys and values are bytes, of the length that is given with them, and may contain zeros; texts end with a
 * zero. What a call writes through a pointer is written whatever it returns: a handle that there is none of is NULL. NULL is
 * refused where a pointer is needed, and freeing it does nothing.
 */

#ifndef LARDER_H
#define LARDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// What a call returns.
typedef enum {
  // It was done.
  LARDER_STATUS_OK = 0,
  // There is no such item.
  LARDER_STATUS_NOT_FOUND = 1,
  // Nothing was stored, because of what was there, or was not.
  LARDER_STATUS_NOT_STORED = 2,
  // Nothing was stored, because the item was changed since its CAS was seen.
  LARDER_STATUS_EXISTS = 3,
  // The value is not a number.
  LARDER_STATUS_NOT_A_NUMBER = 4,
  // An argument is NULL or not UTF-8, or an address is none.
  LARDER_STATUS_INVALID_ARGUMENT = 16,
  // No server can have such a key.
  LARDER_STATUS_KEY = 17,
  // No server takes a value of this length.
  LARDER_STATUS_VALUE_TOO_LONG = 18,
  // The server can't be reached.
  LARDER_STATUS_CONNECT = 19,
  // The server failed so often that it is left alone for a moment.
  LARDER_STATUS_UNAVAILABLE = 20,
  // All connections were in use until the deadline.
  LARDER_STATUS_POOL_TIMEOUT = 21,
  // The server did not answer until the deadline.
  LARDER_STATUS_TIMEOUT = 22,
  // The connection failed, or the server closed it.
  LARDER_STATUS_CONNECTION = 23,
  // The server's answer is not one to this request.
  LARDER_STATUS_UNEXPECTED = 24,
  // The server refused the request, and would do so again.
  LARDER_STATUS_REFUSED = 25,
  // The server could not do what was asked.
  LARDER_STATUS_SERVER = 26,
  // The server refused the login.
  LARDER_STATUS_LOGIN = 27,
  // Another error of the client.
  LARDER_STATUS_OTHER = 28,
  // A fault of this library.
  LARDER_STATUS_PANIC = 29,
} larder_status;

// A client, for any number of threads.
typedef struct larder_client larder_client;

// Options of a client that is to be opened.
typedef struct larder_options larder_options;

// A value with its flags and CAS.
typedef struct larder_value larder_value;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// New options, with defaults. They are freed by larder_options_free().
larder_options *larder_options_new(void);

// Frees options.
void larder_options_free(larder_options *options);

// How long a call takes at most, in milliseconds, the wait for a connection included. [Default: 1000]
larder_status larder_options_timeout(larder_options *options,
                                     uint64_t millis);

// How long opening a connection takes at most, in milliseconds, if the call has as much time left. [Default: 250]
larder_status larder_options_connect_timeout(larder_options *options,
                                             uint64_t millis);

// Gives each call a connection to itself, of at most so many to each server; further calls wait for one. [Default: calls
// share connections, 4 at most]
larder_status larder_options_pool(larder_options *options,
                                  size_t max);

// Logs in on each connection, by memcached's text protocol (its option -Y). Neither the name nor the password has blanks.
// [Default: no login]
larder_status larder_options_login(larder_options *options,
                                   const char *user,
                                   const char *password);

// Opens a client for the server at an address: HOST, HOST:PORT, [V6]:PORT, or the path of a unix socket. Addresses of
// several servers are separated by commas; keys are distributed over them by rendezvous hashing, which depends on the
// addresses alone. Options may be NULL, and can be freed afterwards. Connections are opened when they are needed. The
// client is closed by larder_close().
larder_status larder_open(const char *address,
                          const larder_options *options,
                          larder_client **client);

// Closes a client with its connections.
void larder_close(larder_client *client);

// What went wrong in this thread's last call, for people; empty if nothing did. Valid until the thread's next call.
const char *larder_error_message(void);

// The server that this thread's last call failed for; NULL if it was not for one, or did not fail. Valid until the
// thread's next call.
const char *larder_error_server(void);

// Whether the change that this thread's last call asked for may have happened although it failed. Otherwise it has not,
// and will not.
bool larder_error_is_ambiguous(void);

// Reads the value of a key, which larder_value_free() frees.
larder_status larder_get(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         larder_value **value);

// The same with the CAS of the value.
larder_status larder_gets(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          larder_value **value);

// The same, and sets when the item expires: in so many seconds, or never with 0.
larder_status larder_gat(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         uint32_t ttl,
                         larder_value **value);

// Reads the values of `count` keys: one request and one answer of each server. `values` has room for as many, in the order of the keys;
// those of keys that are not there are NULL. Each value is freed by larder_value_free().
larder_status larder_get_many(const larder_client *client,
                              const char *const *keys,
                              const size_t *key_lens,
                              size_t count,
                              larder_value **values);

// Stores a value with flags, whatever is there. It expires in `ttl` seconds, or never with 0.
larder_status larder_set(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// The same if there is no item; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_add(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags);

// The same if there is an item; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_replace(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *value,
                             size_t value_len,
                             uint32_t ttl,
                             uint32_t flags);

// The same if the item that is there has this CAS; otherwise LARDER_STATUS_EXISTS or LARDER_STATUS_NOT_FOUND.
larder_status larder_cas(const larder_client *client,
                         const char *key,
                         size_t key_len,
                         const void *value,
                         size_t value_len,
                         uint32_t ttl,
                         uint32_t flags,
                         uint64_t cas);

// Adds bytes to the end of a value, if there is one; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_append(const larder_client *client,
                            const char *key,
                            size_t key_len,
                            const void *more,
                            size_t more_len);

// Adds bytes to the begin of a value, if there is one; otherwise LARDER_STATUS_NOT_STORED.
larder_status larder_prepend(const larder_client *client,
                             const char *key,
                             size_t key_len,
                             const void *more,
                             size_t more_len);

// Removes an item.
larder_status larder_delete(const larder_client *client, const char *key, size_t key_len);

// Sets when an item expires: in so many seconds, or never with 0.
larder_status larder_touch(const larder_client *client,
                           const char *key,
                           size_t key_len,
                           uint32_t ttl);

// Adds to a number, which wraps at 2^64. The number afterwards is written to `number`, unless that is NULL.
larder_status larder_incr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Subtracts from a number, down to 0 at most. The number afterwards is written to `number`, unless that is NULL.
larder_status larder_decr(const larder_client *client,
                          const char *key,
                          size_t key_len,
                          uint64_t delta,
                          uint64_t *number);

// Removes all items of each server.
larder_status larder_flush(const larder_client *client);

// The bytes of a value; NULL if the value is NULL. They are valid until the value is freed.
const void *larder_value_data(const larder_value *value);

// How many bytes a value has; 0 if it is NULL.
size_t larder_value_len(const larder_value *value);

// The flags that were stored with a value; 0 if it is NULL.
uint32_t larder_value_flags(const larder_value *value);

// The CAS of a value that larder_gets() or larder_gat() has read; otherwise 0.
uint64_t larder_value_cas(const larder_value *value);

// Frees a value.
void larder_value_free(larder_value *value);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LARDER_H */
