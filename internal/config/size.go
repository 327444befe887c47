package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units in bytes; the plain forms are powers of 1000, the forms with an i powers of 1024.
var units = []struct {
	name  string
	bytes uint64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"b", 1},
	{"", 1},
}

// exactBytes is the largest size with a fraction, since a float64 holds whole numbers exactly up to here.
const exactBytes = 1 << 53

// ParseSize reads a size such as 30gb, 1.5 GiB or 4096 and returns bytes. Letters may be of either case.
func ParseSize(text string) (bytes uint64, err error) {
	s := strings.ToLower(strings.TrimSpace(text))
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	name := s[len(digits):]
	digits = strings.TrimSpace(digits)
	for _, u := range units {
		if u.name == name {
			return scale(text, digits, u.bytes)
		}
	}
	return 0, fmt.Errorf("size %q has the unknown unit %q: use kb, mb, gb, tb (powers of 1000), kib, mib, gib, tib (powers of 1024), or plain bytes", text, name)
}

func scale(text, digits string, unit uint64) (uint64, error) {
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && n > math.MaxInt64/unit:
		return 0, fmt.Errorf("size %q is larger than any memory", text)
	case err == nil:
		return n * unit, nil
	}
	f, err := strconv.ParseFloat(digits, 64)
	if err != nil || f < 0 || math.IsNaN(f) || math.IsInf(f, 0) || strings.ContainsAny(digits, "ex_") {
		return 0, fmt.Errorf("size %q is not a number with a unit, such as 30gb or 1.5gib", text)
	}
	if f*float64(unit) > exactBytes {
		return 0, fmt.Errorf("size %q with a fraction is too large to be exact: write it in a smaller unit", text)
	}
	return uint64(f * float64(unit)), nil
}

// FormatSize writes bytes for people: the largest binary unit with at most two decimals.
func FormatSize(bytes uint64) string {
	for i := 3; i >= 0; i-- {
		if u := units[i]; bytes >= u.bytes {
			text := strconv.FormatFloat(float64(bytes)/float64(u.bytes), 'f', 2, 64)
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
			return text + " " + strings.ToUpper(u.name[:1]) + "iB"
		}
	}
	return strconv.FormatUint(bytes, 10) + " B"
}
