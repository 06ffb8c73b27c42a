// Package clients runs gomemcache against the server that LARDER_ADDRESS names.
package clients

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func connect(t *testing.T) *memcache.Client {
	t.Helper()
	address := os.Getenv("LARDER_ADDRESS")
	if address == "" {
		t.Fatal("LARDER_ADDRESS is not set")
	}
	client := memcache.New(address)
	client.Timeout = 60 * time.Second
	client.MaxIdleConns = 16
	if err := client.Ping(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func holds(t *testing.T, client *memcache.Client, key, want string) {
	t.Helper()
	item, err := client.Get(key)
	must(t, err)
	if string(item.Value) != want {
		t.Fatalf("%s holds %q, want %q", key, item.Value, want)
	}
}

func item(key, value string) *memcache.Item {
	return &memcache.Item{Key: key, Value: []byte(value)}
}

func TestSetGetDelete(t *testing.T) {
	client := connect(t)
	must(t, client.Set(&memcache.Item{Key: "key", Value: []byte("value"), Flags: 123}))
	found, err := client.Get("key")
	must(t, err)
	if found.Flags != 123 || string(found.Value) != "value" {
		t.Fatalf("%+v", found)
	}
	must(t, client.Delete("key"))
	_, err = client.Get("key")
	wants(t, err, memcache.ErrCacheMiss)
	wants(t, client.Delete("key"), memcache.ErrCacheMiss)
}

func TestConditionalStores(t *testing.T) {
	client := connect(t)
	wants(t, client.Replace(item("cond", "0")), memcache.ErrNotStored)
	must(t, client.Add(item("cond", "b")))
	wants(t, client.Add(item("cond", "x")), memcache.ErrNotStored)
	must(t, client.Append(item("cond", "c")))
	must(t, client.Prepend(item("cond", "a")))
	holds(t, client, "cond", "abc")
	must(t, client.Replace(item("cond", "z")))
	holds(t, client, "cond", "z")
}

func TestMany(t *testing.T) {
	client := connect(t)
	keys := []string{"absent"}
	for n := 0; n < 100; n++ {
		key := fmt.Sprintf("many%d", n)
		keys = append(keys, key)
		must(t, client.Set(item(key, key)))
	}
	found, err := client.GetMulti(keys)
	must(t, err)
	if len(found) != 100 || string(found["many42"].Value) != "many42" {
		t.Fatalf("%d items", len(found))
	}
}

func TestCasWinsOnce(t *testing.T) {
	client := connect(t)
	must(t, client.Set(item("cas", "1")))
	first, err := client.Get("cas")
	must(t, err)
	second, err := client.Get("cas")
	must(t, err)
	first.Value, second.Value = []byte("2"), []byte("3")
	must(t, client.CompareAndSwap(first))
	wants(t, client.CompareAndSwap(second), memcache.ErrCASConflict)
	holds(t, client, "cas", "2")
}

func TestNumbers(t *testing.T) {
	client := connect(t)
	must(t, client.Set(item("number", "10")))
	for _, step := range []struct {
		change func(string, uint64) (uint64, error)
		by     uint64
		want   uint64
	}{{client.Increment, 5, 15}, {client.Decrement, 1, 14}, {client.Decrement, 100, 0}} {
		got, err := step.change("number", step.by)
		must(t, err)
		if got != step.want {
			t.Fatalf("got %d, want %d", got, step.want)
		}
	}
	_, err := client.Increment("no-number", 1)
	wants(t, err, memcache.ErrCacheMiss)
}

func TestExpiryTouchAndGetAndTouch(t *testing.T) {
	client := connect(t)
	for _, key := range []string{"short", "touched", "fetched"} {
		must(t, client.Set(&memcache.Item{Key: key, Value: []byte("1"), Expiration: 3}))
	}
	must(t, client.Touch("touched", 100))
	_, err := client.GetAndTouch("fetched", 100)
	must(t, err)
	deadline := time.Now().Add(60 * time.Second)
	for err == nil {
		if time.Now().After(deadline) {
			t.Fatal("the item does not expire")
		}
		time.Sleep(50 * time.Millisecond)
		_, err = client.Get("short")
	}
	wants(t, err, memcache.ErrCacheMiss)
	holds(t, client, "touched", "1")
	holds(t, client, "fetched", "1")
	wants(t, client.Touch("short", 100), memcache.ErrCacheMiss)
}

func TestLargeValue(t *testing.T) {
	client := connect(t)
	value := bytes.Repeat([]byte("0123456789abcdef"), 1_000_000/16)
	must(t, client.Set(&memcache.Item{Key: "large", Value: value}))
	found, err := client.Get("large")
	must(t, err)
	if !bytes.Equal(found.Value, value) {
		t.Fatal("a large value came back different")
	}
}

func TestGoroutines(t *testing.T) {
	client := connect(t)
	var group sync.WaitGroup
	for worker := 0; worker < 16; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for n := 0; n < 200; n++ {
				key := fmt.Sprintf("go%d-%d", worker, n)
				if err := client.Set(item(key, key)); err != nil {
					t.Error(err)
					return
				}
				found, err := client.Get(key)
				if err != nil || string(found.Value) != key {
					t.Errorf("%s: %v", key, err)
					return
				}
			}
		}(worker)
	}
	group.Wait()
}

func TestZFlush(t *testing.T) {
	client := connect(t)
	must(t, client.Set(item("flushed", "1")))
	must(t, client.FlushAll())
	_, err := client.Get("flushed")
	wants(t, err, memcache.ErrCacheMiss)
}
