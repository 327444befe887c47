package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"orbitkv/internal/admin"
	"orbitkv/internal/config"
	"orbitkv/internal/ssd"
	"orbitkv/internal/vfs"
)

const (
	folderFlag    = "ssd-cache-path"
	lineBytesMax  = 64 << 10 // of an answer
	progressEvery = time.Second
)

// ssdVerification is what the user asked for.
type ssdVerification struct {
	running bool
	folder  string
	rebuild bool
	rate    string
}

func (v *ssdVerification) wanted(cmd *cobra.Command) bool {
	return v.running || v.rebuild || cmd.Flags().Changed(folderFlag)
}

func (v *ssdVerification) run(cmd *cobra.Command) error {
	rate, err := config.ParseSize(v.rate)
	switch {
	case err != nil:
		return fmt.Errorf("--rate: %w", err)
	case v.running && cmd.Flags().Changed(folderFlag):
		return fmt.Errorf("--ssd asks the running Manager and --%s reads the folder of a stopped one: name one of them", folderFlag)
	case v.rebuild && v.folder == "":
		return fmt.Errorf("--rebuild-index needs --%s, and the Manager stopped", folderFlag)
	case !v.running && v.folder == "":
		return fmt.Errorf("--%s: the path is empty", folderFlag)
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	defer stop()
	out := &findings{to: cmd.OutOrStdout(), progress: cmd.ErrOrStderr(), told: time.Now()}
	if v.running {
		err = verifyRunning(ctx, cmd, rate, out)
	} else {
		err = verifyFolder(ctx, v.folder, v.rebuild, rate, out)
	}
	if err != nil {
		return err
	}
	return out.conclude()
}

// verifyRunning asks the Manager and shows its lines as they come.
func verifyRunning(ctx context.Context, cmd *cobra.Command, rate uint64, out *findings) (err error) {
	address, err := config.HTTPAddress(flagsOf(cmd), os.LookupEnv)
	if err != nil {
		return err
	}
	path, err := config.TokenFile(flagsOf(cmd), os.LookupEnv)
	if err != nil {
		return err
	}
	token, err := admin.ReadToken(path)
	if err != nil {
		return fmt.Errorf("%w: name the file of the running Manager's token with --%s, or its --%s", err, config.FlagToken, config.FlagSocket)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/verify/ssd?rate=%d", address, rate), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return absent(address, err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(answer.Body, lineBytesMax))
		return errors.Join(fmt.Errorf("/verify/ssd at %s answered %s: %s", address, answer.Status, strings.TrimSpace(string(text))), err)
	}
	return out.read(answer.Body)
}

// findings prints what a verification tells, from the Manager or from a folder.
type findings struct {
	to, progress io.Writer
	end          *admin.SSDEnd
	told         time.Time // of the last progress
	failed       error     // of writing
}

// read takes the lines of an answer.
func (f *findings) read(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		var line admin.SSDLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("the answer cannot be read: %w: is another program at this address, or another release?", err)
		}
		switch {
		case line.Problem != nil:
			f.problem(*line.Problem)
		case line.Progress != nil:
			f.tell(*line.Progress)
		case line.End != nil:
			f.end = line.End
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the answer broke off: %w", err)
	}
	return nil
}

func (f *findings) problem(p admin.SSDProblem) {
	_, err := fmt.Fprintf(f.to, "%s: page %s of group %d, namespace %s epoch %d, %s: %s\n", harmless(p.Folder), p.Key, p.Group, p.Namespace, p.Epoch,
		config.FormatSize(p.Bytes), harmless(p.Reason))
	f.failed = errors.Join(f.failed, err)
}

func (f *findings) tell(p admin.SSDProgress) {
	_, err := fmt.Fprintf(f.progress, "%d of %d pages, %s\n", p.Pages, p.Of, config.FormatSize(p.Bytes))
	f.failed = errors.Join(f.failed, err)
}

// conclude says how it ended, by the exit status too.
func (f *findings) conclude() error {
	switch {
	case f.failed != nil:
		return f.failed
	case f.end == nil:
		return errors.New("the answer broke off before its end: the Manager ended, or another program is at this address")
	case f.end.Error != "":
		return fmt.Errorf("not every page was read, %d were: %s", f.end.Pages, f.end.Error)
	}
	sums := fmt.Sprintf("%d pages, %s", f.end.Pages, config.FormatSize(f.end.Bytes))
	if !f.end.OK {
		if _, err := fmt.Fprintf(f.to, "%d of %s are not as they were written\n", f.end.Problems, sums); err != nil {
			return err
		}
		return errSilent
	}
	_, err := fmt.Fprintf(f.to, "%s: every page is as it was written\n", sums)
	return err
}

// verifyFolder reads the folder of a Manager that was stopped.
func verifyFolder(ctx context.Context, path string, rebuild bool, rate uint64, out *findings) (err error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return fmt.Errorf("--%s %s is no folder: name the one that the Manager was started with", folderFlag, path)
	}
	folder, err := vfs.NewOS(path)
	if err != nil {
		return err
	}
	if rebuild {
		if err := out.rebuild(ctx, folder); err != nil {
			return inUse(err)
		}
	}
	store, err := ssd.Open(ssd.Config{ // without a capacity it only looks
		Volumes: []ssd.VolumeConfig{{FS: folder}}, Backend: config.BackendPool,
		Memory: func(uint64, uint64) []byte { panic("verifying a folder reads no page into the pool") },
	})
	if err != nil {
		return inUse(err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	stats := store.Stats()
	for _, reason := range slices.Sorted(maps.Keys(stats.RecoveryProblems)) {
		out.say(fmt.Sprintf("%s: %d records of the index are not used: %s", folder.Name(), stats.RecoveryProblems[reason], reason))
	}
	out.end = &admin.SSDEnd{}
	found, err := store.Verify(ctx, rate, func(p ssd.Problem) { out.problem(admin.ProblemOf(p)) }, out.tellOf(sum(stats.Pages)))
	*out.end = admin.EndOf(found, err)
	if found.Dropped > 0 {
		out.say(fmt.Sprintf("%s: %d damaged pages are forgotten: they are misses from here on, and the next run does not find them", folder.Name(), found.Dropped))
	}
	return nil
}

// inUse adds what to do about a folder that has a Manager.
func inUse(err error) error {
	if !errors.Is(err, ssd.ErrInUse) {
		return err
	}
	return fmt.Errorf("%w; `orbitkv verify --ssd` asks a Manager that runs", err)
}

// rebuild makes the index anew and says what it found.
func (f *findings) rebuild(ctx context.Context, folder vfs.FS) error {
	pages, problems, err := ssd.RebuildIndex(ctx, folder, func(done, total uint64) {
		if f.due() {
			fmt.Fprintf(f.progress, "index: %s of %s\n", config.FormatSize(done), config.FormatSize(total))
		}
	})
	if err != nil {
		return err
	}
	for _, reason := range slices.Sorted(maps.Keys(problems)) {
		f.say(fmt.Sprintf("%s: %d pages were not used: %s", folder.Name(), problems[reason], reason))
	}
	f.say(fmt.Sprintf("%s: the index was made anew with %d pages", folder.Name(), pages))
	return nil
}

func (f *findings) say(line string) {
	_, err := fmt.Fprintln(f.to, harmless(line))
	f.failed = errors.Join(f.failed, err)
}

// tellOf tells of progress about every second.
func (f *findings) tellOf(pages uint64) func(ssd.VerifyReport) {
	return func(r ssd.VerifyReport) {
		if f.due() {
			f.tell(admin.SSDProgress{Pages: r.Pages, Bytes: r.Bytes, Of: pages})
		}
	}
}

// due says whether progress may be told again.
func (f *findings) due() bool {
	if time.Since(f.told) < progressEvery {
		return false
	}
	f.told = time.Now()
	return true
}
