// Package resp runs go-redis against the RESP listener that LARDER_RESP_ADDRESS names.
package resp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connectRedis connects to the RESP listener that LARDER_RESP_ADDRESS names.
func connectRedis(t *testing.T, protocol int) *redis.Client {
	t.Helper()
	address := os.Getenv("LARDER_RESP_ADDRESS")
	if address == "" {
		t.Fatal("LARDER_RESP_ADDRESS is not set")
	}
	client := redis.NewClient(&redis.Options{
		Addr: address, Protocol: protocol, PoolSize: 8,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute, PoolTimeout: time.Minute,
	})
	must(t, client.Ping(context.Background()).Err())
	t.Cleanup(func() { client.Close() })
	return client
}

func TestGoRedis(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) { testGoRedis(t, protocol) })
	}
}

func testGoRedis(t *testing.T, protocol int) {
	ctx := context.Background()
	client := connectRedis(t, protocol)
	must(t, client.FlushAll(ctx).Err())
	must(t, client.Set(ctx, "key", "value", time.Hour).Err())
	if value := client.Get(ctx, "key").Val(); value != "value" {
		t.Fatalf("got %q", value)
	}
	if ttl := client.TTL(ctx, "key").Val(); ttl < 59*time.Minute || ttl > time.Hour {
		t.Fatalf("expires in %v", ttl)
	}
	if err := client.Get(ctx, "absent").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("got %v", err)
	}
	if stored := client.SetNX(ctx, "key", "other", 0).Val(); stored {
		t.Fatal("SETNX has replaced an item")
	}
	if n := client.IncrBy(ctx, "n", 7).Val(); n != 7 {
		t.Fatalf("got %d", n)
	}
	values := client.MGet(ctx, "key", "absent", "n").Val()
	if fmt.Sprint(values) != "[value <nil> 7]" {
		t.Fatalf("got %v", values)
	}
	if err := client.Incr(ctx, "key").Err(); err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Fatalf("got %v", err)
	}
	if err := client.LPush(ctx, "list", 1).Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Fatalf("got %v", err)
	}
	commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		for n := 0; n < 100; n++ {
			pipe.Set(ctx, fmt.Sprint("tx", n), n, time.Hour)
			pipe.Get(ctx, fmt.Sprint("tx", n))
		}
		return nil
	})
	must(t, err)
	if got := commands[199].(*redis.StringCmd).Val(); got != "99" {
		t.Fatalf("got %q", got)
	}
}

func TestGoRedisPool(t *testing.T) {
	ctx := context.Background()
	client := connectRedis(t, 3)
	var group sync.WaitGroup
	for worker := 0; worker < 32; worker++ {
		group.Add(1)
		go func(worker int) {
			defer group.Done()
			for n := 0; n < 100; n++ {
				key, want := fmt.Sprintf("pool%d:%d", worker, n%10), fmt.Sprint(worker, n)
				if err := client.Set(ctx, key, want, time.Hour).Err(); err != nil {
					t.Error(err)
					return
				}
				if got := client.Get(ctx, key).Val(); got != want {
					t.Errorf("got %q, want %q", got, want)
					return
				}
			}
		}(worker)
	}
	group.Wait()
}
