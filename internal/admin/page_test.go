package admin

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"orbitkv/internal/cache"
	"orbitkv/internal/ssd"
)

// The page for users, and the types that its tables of fields describe.
const pageFile = "docs/reference/http.md"

var pageTypes = []reflect.Type{
	reflect.TypeFor[Cleanup](), reflect.TypeFor[Verification](), reflect.TypeFor[Status](), reflect.TypeFor[Pool](),
	reflect.TypeFor[SSDLine](), reflect.TypeFor[SSDProblem](), reflect.TypeFor[SSDProgress](), reflect.TypeFor[SSDEnd](), reflect.TypeFor[SSD](), reflect.TypeFor[ssd.VolumeStatus](),
	reflect.TypeFor[cache.ArenaStatus](), reflect.TypeFor[cache.InstanceStatus](), reflect.TypeFor[cache.JointStatus](), reflect.TypeFor[cache.RankStatus](), reflect.TypeFor[cache.SessionStatus](), reflect.TypeFor[cache.HintStatus](),
}

var (
	rowName   = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	routeCall = regexp.MustCompile(`mux\.Handle(?:Func)?\("([^"]+)"`)
)

func readText(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rows returns the first column of the table that follows a mark.
func rows(t *testing.T, page, mark string) []string {
	t.Helper()
	_, rest, found := strings.Cut(page, mark)
	if !found {
		t.Fatalf("%s has no %q", pageFile, mark)
	}
	_, table, _ := strings.Cut(rest, "|---|")
	table, _, _ = strings.Cut(table, "\n\n")
	var names []string
	for _, match := range rowName.FindAllStringSubmatch(table, -1) {
		names = append(names, match[1])
	}
	return names
}

func TestThePageListsEveryField(t *testing.T) {
	page := readText(t, "..", "..", pageFile)
	for _, typ := range pageTypes {
		var want []string
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			want = append(want, name)
		}
		if got := rows(t, page, "<!-- fields:"+typ.Name()+" -->"); !slices.Equal(got, want) {
			t.Errorf("%s describes %s as %q, its fields are %q", pageFile, typ.Name(), got, want)
		}
	}
}

func TestThePageListsEveryRequest(t *testing.T) {
	want := map[string]bool{}
	for _, match := range routeCall.FindAllStringSubmatch(readText(t, "server.go"), -1) {
		want[match[1]] = true
	}
	got := map[string]bool{}
	for _, name := range rows(t, readText(t, "..", "..", pageFile), "# HTTP") {
		got[name] = true
	}
	if len(want) == 0 || !maps.Equal(got, want) {
		t.Errorf("%s lists the requests %q, the server has %q", pageFile, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
