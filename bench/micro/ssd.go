package micro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// SSDOptions are what SSD measures with.
type SSDOptions struct {
	Options
	Path      string   // folder on the disk
	FileBytes uint64   // of the file that is made there
	Blocks    []uint64 // bytes of one read or write
	Depths    []int    // reads or writes at a time

	Pages         []uint64 // bytes of the store's pages
	Engines       []string // of the store: pool, uring or both
	Throttle      uint64   // bytes a second of the disk of the section backlog
	RecoveryPages int      // of the section recovery
}

const ssdNote = "Rows of read and write are the ceiling of an SSD tier: what the disk gives a pool of threads that each wait for one pread or pwrite at a random place; such a\n" +
	"write ends when the disk has taken it. Rows of store are the tier of `orbitkv serve` in this process, and stand beside the raw disk in blocks of a page at the depth\n" +
	"that the store gives the device: its writes end when page and record are durable, two flushes of the disk a group included, and each page takes another's place; its\n" +
	"reads end when the digest is compared. Processor time is that of the whole process. A backlog's disk is slowed on purpose, reads and writes each to their own rate."

func (o SSDOptions) check() error {
	err := o.checkRaw()
	if slices.ContainsFunc([]string{"store", "backlog", "recovery"}, func(name string) bool { return o.wants(section{name: name}) }) {
		err = errors.Join(err, o.checkStore())
	}
	return err
}

// checkStore says what of the store's own sections cannot be measured.
func (o SSDOptions) checkStore() error {
	if len(o.Pages) == 0 || len(o.Engines) == 0 {
		return errors.New("--pages and --engines need one value each at least")
	}
	for _, page := range o.Pages {
		if page < diskAlign || page%diskAlign != 0 || page > blockBytesMax {
			return fmt.Errorf("--pages has %d bytes: give multiples of %s up to %s", page, sizeName(diskAlign), sizeName(blockBytesMax))
		}
	}
	if largest := slices.Max(o.Pages); storeShare*largest > o.FileBytes {
		return o.tooSmall(largest)
	}
	for _, engine := range o.Engines {
		if !slices.Contains(storeEngines, engine) {
			return fmt.Errorf("--engines has %q: name %s", engine, strings.Join(storeEngines, " or "))
		}
	}
	if o.Throttle < throttleMin {
		return fmt.Errorf("--throttle is %d bytes a second: give %d at least", o.Throttle, throttleMin)
	}
	if o.RecoveryPages < recoveryPagesMin || o.RecoveryPages > recoveryPagesMax {
		return fmt.Errorf("--recovery-pages is %d: give %d to %d", o.RecoveryPages, recoveryPagesMin, recoveryPagesMax)
	}
	return nil
}

// tooSmall says what to give where the file does not hold a store of the largest pages, which may be nobody's choice but the default.
func (o SSDOptions) tooSmall(largest uint64) error {
	err := fmt.Errorf("%s is too small for pages of %s: give --size %s", sizeName(o.FileBytes), sizeName(largest), asFlag((storeShare*largest+layBlock-1)/layBlock*layBlock))
	var fit []string
	for _, page := range o.Pages {
		if storeShare*page <= o.FileBytes {
			fit = append(fit, asFlag(page))
		}
	}
	if len(fit) > 0 {
		err = fmt.Errorf("%w, or --pages %s", err, strings.Join(fit, ","))
	}
	return err
}

// asFlag writes whole KiB as a flag takes them.
func asFlag(bytes uint64) string {
	return strings.ToLower(strings.ReplaceAll(sizeName(bytes), " ", ""))
}

// Bounds of the store's own sections.
const (
	storeShare  = 16      // pages that a store holds at least
	throttleMin = 1 << 20 // bytes a second
)

func (o SSDOptions) checkRaw() error {
	if o.FileBytes < layBlock || o.FileBytes%layBlock != 0 {
		return fmt.Errorf("--size is %d bytes: give a multiple of 1 MiB", o.FileBytes)
	}
	if len(o.Blocks) == 0 || len(o.Depths) == 0 {
		return errors.New("--blocks and --depths need one value each at least")
	}
	for _, depth := range o.Depths {
		if depth < 1 || depth > depthMax {
			return fmt.Errorf("--depths has %d: give 1 to %d", depth, depthMax)
		}
	}
	for _, block := range o.Blocks {
		if block < diskAlign || block%diskAlign != 0 || block > blockBytesMax || block > o.FileBytes {
			return fmt.Errorf("--blocks has %d bytes: give multiples of %d up to %d, none larger than --size", block, diskAlign, blockBytesMax)
		}
		for _, depth := range o.Depths {
			if block*uint64(depth) > flightMax {
				return fmt.Errorf("%d blocks of %d bytes at a time need more than %d bytes of buffers: lower --depths or --blocks", depth, block, uint64(flightMax))
			}
		}
	}
	return nil
}

// SSD measures a disk with a file that it makes in a folder, and writes the table to out. The file has no name and goes with the call. A folder whose
// file system takes O_DIRECT by name only, or not at all, is refused.
func SSD(ctx context.Context, o SSDOptions, out io.Writer) (err error) {
	r := newReport("ssd", "depth")
	var d *disk
	sections := []section{
		{"read", func(ctx context.Context, r *report) error { return o.rows(ctx, r, "read", d.read) }},
		{"write", func(ctx context.Context, r *report) error { return o.rows(ctx, r, "write", d.write) }},
		{"store", func(ctx context.Context, r *report) error { return o.store(ctx, r, d) }},
		{"backlog", o.backlog},
		{"recovery", o.recovery},
	}
	if err := errors.Join(o.check(), o.Options.check(sections)); err != nil {
		return err
	}
	if err := checkFolder(o.Path, o.diskBytes(sections)); err != nil {
		return err
	}
	fmt.Fprintf(o.Progress, "ssd: filling a file of %s in %s\n", sizeName(o.FileBytes), o.Path)
	if d, err = openDisk(ctx, o.Path, o.FileBytes); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted while the file was filled: it is gone, and no figure is kept")
		}
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	r.storage = &d.storage
	r.about = fmt.Sprintf("%s: mount %s, file system %s, device %s, file of %s, O_DIRECT %s", d.storage.Path, d.storage.Mount, d.storage.Filesystem,
		d.storage.Device, sizeName(d.bytes), d.storage.Direct)
	r.note = ssdNote
	return run(ctx, o.Options, r, sections, out)
}

// diskBytes is what the file and the largest of the stores beside it take.
func (o SSDOptions) diskBytes(sections []section) uint64 {
	beside := uint64(0)
	for _, s := range sections {
		switch {
		case !o.wants(s):
		case s.name == "recovery":
			beside = max(beside, o.recoveryBytes())
		case s.name == "store" || s.name == "backlog":
			beside = max(beside, o.FileBytes, backlogStorage*(backlogBytes+writersMin*slices.Max(o.Pages)))
		}
	}
	return o.FileBytes + beside
}

// rows measures one row for each block size and depth.
func (o SSDOptions) rows(ctx context.Context, r *report, name string, call func([]byte, int64) error) error {
	for _, block := range o.Blocks {
		for _, depth := range o.Depths {
			if err := o.row(ctx, r, name+" "+sizeName(block), block, depth, call); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o SSDOptions) row(ctx context.Context, r *report, name string, block uint64, depth int, call func([]byte, int64) error) error {
	b, err := newBuffers(depth, int(block))
	if err != nil {
		return err
	}
	all, err := together(ctx, load{clients: depth, warmUp: 1, time: o.RowTime, once: func(_ context.Context, i int) (time.Duration, error) {
		at := rand.Uint64N(o.FileBytes/block) * block
		begun := time.Now()
		err := call(b.of(i), int64(at))
		return time.Since(begun), err
	}})
	if err = errors.Join(err, b.free()); err != nil {
		return err
	}
	r.rated(name, depth, "", all.samples, gib(all.calls, block), gibPerSecond)
	return nil
}

// sizeName is a size in the largest unit that it is a whole number of.
func sizeName(bytes uint64) string {
	for _, u := range []struct {
		name  string
		bytes uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= u.bytes && bytes%u.bytes == 0 {
			return fmt.Sprintf("%d %s", bytes/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}
