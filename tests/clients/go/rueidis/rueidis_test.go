// Package rueidis runs rueidis, with its near cache, against the RESP listener that LARDER_RESP_ADDRESS names.
package rueidis

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

func connect(t *testing.T, option rueidis.ClientOption) rueidis.Client {
	t.Helper()
	option.InitAddress = []string{os.Getenv("LARDER_RESP_ADDRESS")}
	option.ForceSingleClient = true
	client, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// await waits until a condition is true.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

func TestNearCache(t *testing.T) {
	modes := map[string]rueidis.ClientOption{
		"OptIn":     {},
		"Broadcast": {ClientTrackingOptions: []string{"PREFIX", "near:", "BCAST"}},
		"OptOut":    {ClientTrackingOptions: []string{"OPTOUT"}},
	}
	for name, option := range modes {
		t.Run(name, func(t *testing.T) { testNearCache(t, option) })
	}
}

func testNearCache(t *testing.T, option rueidis.ClientOption) {
	ctx := context.Background()
	near := connect(t, option)
	other := connect(t, rueidis.ClientOption{DisableCache: true})
	set := func(key, value string) {
		t.Helper()
		if err := other.Do(ctx, other.B().Set().Key(key).Value(value).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	get := func(key string) (string, bool) {
		t.Helper()
		reply := near.DoCache(ctx, near.B().Get().Key(key).Cache(), time.Hour)
		value, err := reply.ToString()
		if err != nil {
			t.Fatal(err)
		}
		return value, reply.IsCacheHit()
	}
	for round := 0; round < 50; round++ {
		wanted := fmt.Sprint("value ", round)
		set("near:a", wanted)
		await(t, "the new value", func() bool { value, _ := get("near:a"); return value == wanted })
		await(t, "a copy", func() bool { value, isCopy := get("near:a"); return isCopy && value == wanted })
	}
	keys := []string{"near:b", "near:c", "near:d"}
	for _, key := range keys {
		set(key, "1")
	}
	for _, wanted := range []string{"2", "3"} {
		for _, key := range keys {
			set(key, wanted)
		}
		await(t, "all new values", func() bool {
			values, err := rueidis.MGetCache(near, ctx, time.Hour, keys)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys {
				message := values[key]
				if value, _ := message.ToString(); value != wanted {
					return false
				}
			}
			return true
		})
	}
	if err := other.Do(ctx, other.B().Flushall().Build()).Error(); err != nil {
		t.Fatal(err)
	}
	await(t, "the flush", func() bool {
		return rueidis.IsRedisNil(near.DoCache(ctx, near.B().Get().Key("near:a").Cache(), time.Hour).Error())
	})
}
