// Reads statistics with the library that the Prometheus memcached_exporter uses. They must be complete
// and parse without an error.

package clients

import (
	"os"
	"strconv"
	"testing"
	"time"

	scraping "github.com/grobie/gomemcache/memcache"
)

func scrape(t *testing.T) (scraping.Stats, map[string]string) {
	t.Helper()
	client, err := scraping.New(os.Getenv("LARDER_ADDRESS"))
	must(t, err)
	client.Timeout = 60 * time.Second
	pages, err := client.Stats()
	must(t, err)
	settings, err := client.StatsSettings()
	must(t, err)
	if len(pages) != 1 || len(settings) != 1 {
		t.Fatalf("%d and %d servers instead of one", len(pages), len(settings))
	}
	for address, page := range pages {
		return page, settings[address]
	}
	panic("there is one")
}

func number(t *testing.T, page map[string]string, name string) float64 {
	t.Helper()
	value, err := strconv.ParseFloat(page[name], 64)
	if err != nil {
		t.Fatalf("%s is %q", name, page[name])
	}
	return value
}

func TestScraping(t *testing.T) {
	client := connect(t)
	must(t, client.FlushAll())
	must(t, client.Set(item("small", "1")))
	must(t, client.Set(item("large", string(make([]byte, 2000)))))
	before, _ := scrape(t)
	holds(t, client, "small", "1")
	after, settings := scrape(t)
	for _, name := range []string{"get_hits", "cmd_get"} {
		if number(t, after.Stats, name) != number(t, before.Stats, name)+1 {
			t.Fatalf("%s goes from %s to %s", name, before.Stats[name], after.Stats[name])
		}
	}
	for _, name := range []string{"uptime", "rusage_user", "limit_maxbytes", "curr_items"} {
		number(t, after.Stats, name)
	}
	if after.Stats["version"] == "" {
		t.Fatal("no version")
	}
	sizes := map[bool]bool{}
	for class, items := range after.Items {
		size := number(t, after.Slabs[class], "chunk_size")
		sizes[size > 2000] = sizes[size > 2000] || number(t, items, "number") > 0
	}
	if !sizes[false] || !sizes[true] {
		t.Fatalf("a small and a large item are not in classes of their sizes: %v", after.Items)
	}
	number(t, settings, "maxconns")
	if settings["lru_crawler"] != "yes" {
		t.Fatalf("lru_crawler is %q", settings["lru_crawler"])
	}
}
