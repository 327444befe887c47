package session

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orbitkv/internal/cache"
	"orbitkv/internal/wire"
)

// childPages is what a child reserves.
const childPages = 64

// childSocket makes this test binary a client in a process of its own.
const childSocket = "ORBITKV_TEST_CHILD_SOCKET"

func TestMain(m *testing.M) {
	if socket := os.Getenv(childSocket); socket != "" {
		child(socket)
		return
	}
	os.Exit(m.Run())
}

// withHeir makes a child start a process that has its socket too.
const withHeir = "ORBITKV_TEST_CHILD_HEIR=1"

// child connects, becomes the only rank and the scheduler of instance child, reserves childPages, commits the first two, says what it got,
// commits the others one by one when it is asked to, and waits for its end.
func child(socket string) {
	worker, err := net.Dial("unix", socket)
	must(err)
	scheduler, err := net.Dial("unix", socket)
	must(err)
	ask(worker, &wire.Hello{ABI: wire.ABI, Role: wire.RoleWorker}, &wire.Welcome{})
	ask(scheduler, &wire.Hello{ABI: wire.ABI, Role: wire.RoleScheduler}, &wire.Welcome{})
	attach := attachFrame("child", 4*kib)
	if os.Getenv("ORBITKV_TEST_CHILD_WRITER") != "" {
		attach.Writer = wire.WriterCudaShared
	}
	ask(worker, attach, &wire.Done{})
	readUntil(worker, wire.TypeArena, 0, &wire.Arena{})
	tell(worker, &wire.Mapped{Ok: true})
	ask(worker, &wire.Ping{}, &wire.Pong{})
	var ns wire.Registered
	ask(scheduler, &wire.Register{Instance: "child", Rank: wire.AllRanks}, &ns)
	var got wire.Reserved
	ask(scheduler, &wire.Reserve{Operation: 1, Revision: 1, Parts: 1, Namespace: ns.Namespace, Instance: "child", Keys: keysOf(0, childPages)}, &got)
	tell(worker, &wire.Committed{Reservation: got.Reservation, Ranges: []wire.Range{{Count: 2}}})
	if os.Getenv("ORBITKV_TEST_CHILD_HEIR") != "" {
		socket, err := worker.(*net.UnixConn).File()
		must(err)
		heir := exec.Command("/bin/sleep", "600")
		heir.ExtraFiles = []*os.File{socket}
		must(heir.Start())
		fmt.Println(heir.Process.Pid)
	}
	fmt.Println(got.Pages)
	_, err = os.Stdin.Read(make([]byte, 1)) // the last words, when they are asked for
	must(err)
	for page := uint32(2); page < got.Pages; page++ {
		tell(worker, &wire.Committed{Reservation: got.Reservation, Ranges: []wire.Range{{First: page, Count: 1}}})
	}
	fmt.Println("sent")
	_, err = io.Copy(io.Discard, os.Stdin)
	must(err)
}

// ask sends a call with id 1 and reads frames up to its answer.
func ask(conn net.Conn, m, reply wire.Message) {
	frame, err := m.Append(nil, 1)
	must(err)
	_, err = conn.Write(frame)
	must(err)
	readUntil(conn, reply.Type(), 1, reply)
}

func tell(conn net.Conn, m wire.Message) {
	frame, err := m.Append(nil, 0)
	must(err)
	_, err = conn.Write(frame)
	must(err)
}

// readUntil skips frames up to one of a type and id.
func readUntil(conn net.Conn, typ wire.Type, id uint64, into wire.Message) {
	head := make([]byte, wire.HeaderBytes)
	for {
		_, err := io.ReadFull(conn, head)
		must(err)
		h, err := wire.ParseHeader(head)
		must(err)
		body := make([]byte, h.Bytes-wire.HeaderBytes)
		_, err = io.ReadFull(conn, body)
		must(err)
		if h.Type == typ && h.ID == id {
			must(into.Decode(body))
			return
		}
		if h.Type == wire.TypeError {
			var refusal wire.Error
			must(refusal.Decode(body))
			must(&refusal)
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(3)
	}
}

// childProcess is a child with its pipes.
type childProcess struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	heir int // pid of a process that has the child's socket too
}

// spawn starts a child and waits until it holds its reservation.
func (r *rig) spawn(environment ...string) childProcess {
	r.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(append(os.Environ(), childSocket+"="+r.socket), environment...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { stdin.Close() })
	c := childProcess{cmd, stdin, bufio.NewReader(stdout), 0}
	if slices.Contains(environment, withHeir) {
		if c.heir, err = strconv.Atoi(r.line(c)); err != nil {
			r.Fatal(err)
		}
	}
	if line := r.line(c); line != strconv.Itoa(childPages) {
		r.Fatalf("the child got %q pages", line)
	}
	return c
}

// line reads what a child says next.
func (r *rig) line(c childProcess) string {
	r.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		r.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (r *rig) kill(cmd childProcess) {
	r.Helper()
	if err := cmd.Process.Kill(); err != nil {
		r.Fatal(err)
	}
	cmd.Wait()
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestAProcessEndsByItsPIDFDAndAfterItsFramesWereHandled(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	witness := r.attach("witness", 4*kib)
	before := r.cache.Stats()
	descriptors := openDescriptors(t)
	for range 20 {
		cmd := r.spawn()
		if s := r.cache.Stats(); s.Processes != before.Processes+1 || s.Reservations != 1 {
			t.Fatalf("stats %+v", s)
		}
		r.kill(cmd)
		r.until("the end of the child's reservation", func() bool {
			s := r.cache.Stats()
			return s.Processes == before.Processes && s.Reservations == 0 && s.WritingBytes == 0 && s.Sessions == before.Sessions && s.SessionsDisconnected == 0
		})
		if s := r.cache.Stats(); s.ResidentBytes != 2*4*kib {
			t.Fatalf("%d bytes are resident: what the child committed must stay, what it did not must go", s.ResidentBytes)
		}
		r.cache.Clear()
	}
	r.until("the connections' end", func() bool { return r.server.Connections() == 2 && openDescriptors(t) <= descriptors })
	witness.worker.alive()
}

// gate holds the cache's mutex from one notice until it is opened.
type gate struct{ entered, open chan struct{} }

// Push implements cache.Sink.
func (g gate) Push(cache.Notice) bool {
	close(g.entered)
	<-g.open
	return true
}

func TestTheLastWordsOfAProcessCount(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	c := r.spawn()
	g := gate{make(chan struct{}), make(chan struct{})}
	id, _, err := r.cache.OpenSession(r.cache.OpenProcess(cache.Process{PID: 1}), wire.RoleTool, "gate", g)
	if err != nil {
		t.Fatal(err)
	}
	r.clock.Add(int64(cache.DefaultPingEvery))
	go r.cache.Tick()
	<-g.entered
	if _, err := c.in.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if line := r.line(c); line != "sent" {
		t.Fatalf("the child says %q", line)
	}
	r.kill(c)
	r.until("the pidfd", func() bool { return r.server.processCount() == 0 })
	// The reader of the child's frames and whoever tells the cache of its end both stand before the mutex now, if the latter does not wait for
	// the former as it should; the pause lets a wrong order show and proves nothing else.
	<-time.After(20 * time.Millisecond)
	close(g.open)
	r.until("the exit", func() bool { return r.cache.Stats().Processes == 1 })
	if n := r.cache.Stats().PageInsertionsTotal; n != childPages {
		t.Errorf("%d of %d pages that the process committed before its end are visible", n, childPages)
	}
	r.cache.CloseSession(id)
}

func TestASocketThatAnotherProcessInheritedDelaysNoDeath(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	c := r.spawn(withHeir)
	r.kill(c)
	r.until("the exit", func() bool { return r.cache.Stats().Processes == 0 && r.server.Connections() == 0 })
	if err := syscall.Kill(c.heir, syscall.SIGKILL); err != nil {
		t.Errorf("the heir was gone before: %v", err)
	}
}

func TestADeadSharedWriterIsQuarantined(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	r.kill(r.spawn("ORBITKV_TEST_CHILD_WRITER=shared"))
	r.until("quarantine", func() bool { return r.cache.Stats().QuarantinedBytes == (childPages-2)*4*kib })
}

func TestAClosedConnectionIsNoDeath(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	e := r.attach("a", 4*kib)
	e.publish(keysOf(0, 2))
	lease := e.query(keysOf(0, 2)).Lease
	var token wire.Welcome
	second := r.dial()
	second.call(&wire.Hello{ABI: wire.ABI, Role: wire.RoleScheduler}, &token)
	e.scheduler.conn.Close()
	e.worker.conn.Close()
	r.until("the disconnects", func() bool { return r.server.Connections() == 1 })
	if s := r.cache.Stats(); s.Leases != 1 || s.SessionsDisconnected != 2 || s.Processes != 1 {
		t.Errorf("a disconnect dropped lease %d: %+v", lease, s)
	}
}

func TestAStoppedProcessStaysWhatItIs(t *testing.T) {
	r := newRig(t, mib)
	r.lend()
	cmd := r.spawn()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.attach("other", 4*kib).publish(keysOf(1000, 2))
	if s := r.cache.Stats(); s.Processes != 2 || s.Reservations != 1 {
		t.Errorf("stats %+v", s)
	}
	r.kill(cmd)
	r.until("the end", func() bool { return r.cache.Stats().Processes == 1 })
}

func TestPIDFDsOfBothKindsNameThePeer(t *testing.T) {
	r := newRig(t, mib)
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fd, err := pidfdByNumber(conn, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if exited(fd) {
		t.Error("this process has exited")
	}
	unix.Close(fd)

	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := pidfdByNumber(conn, ended.Process.Pid); err == nil {
		t.Error("an ended process has a pidfd")
	}
	start, err := startTime(os.Getpid())
	if err != nil || start == 0 {
		t.Errorf("start time %d, %v", start, err)
	}
	if c := command(os.Getpid()); !strings.Contains(c, "session.test") {
		t.Errorf("command %q", c)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to start a process of another user")
	}
	r := newRig(t, mib)
	// The modes that keep other users out are lifted, so that the check of credentials itself is seen.
	for dir := r.socket; dir != os.TempDir() && dir != "/"; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for dir := exe; dir != os.TempDir() && dir != "/" && dir != ""; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(dir, info.Mode().Perm()|0o055); err != nil {
				t.Skipf("another user cannot run this test: %v", err)
			}
		}
	}
	cmd := exec.Command(exe)
	cmd.Env = []string{childSocket + "=" + r.socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("another user was served: %s", out)
	}
	r.until("the refusal", func() bool { return strings.Contains(r.log.String(), "wrong_user") })
	if s := r.cache.Stats(); s.Processes != 0 || s.Sessions != 0 {
		t.Errorf("stats %+v", s)
	}
}
