package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"orbitkv/internal/admin"
	"orbitkv/internal/cache"
	"orbitkv/internal/config"
	"orbitkv/internal/ssd"
)

// commandColumns is how much of a command line a table shows.
const commandColumns = 48

// printStatus writes a status for a person.
func printStatus(w io.Writer, s admin.Status) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	stats := s.Cache.Stats
	fmt.Fprintf(table, "health\t%s\n", s.Health)
	for _, reason := range s.Reasons {
		fmt.Fprintf(table, "\t%s\n", reason)
	}
	fmt.Fprintf(table, "manager\tpid %d, version %s, up %v, socket %s\n", s.PID, s.Version, time.Duration(s.UptimeSeconds)*time.Second, s.Socket)
	fmt.Fprintf(table, "pool\t%s, %s\n", config.FormatSize(s.Pool.ConfiguredBytes), populated(s.Pool))
	fmt.Fprintf(table, "used\t%s of %s, largest free extent %s\n", share(stats.PoolUsedBytes, stats.PoolCapacityBytes),
		config.FormatSize(stats.PoolCapacityBytes), config.FormatSize(stats.PoolLargestFreeBytes))
	fmt.Fprintf(table, "pages\t%d resident (%s), %d stored, %d evicted\n", sum(stats.ResidentPages), config.FormatSize(stats.ResidentBytes),
		stats.PageInsertionsTotal, sum(stats.PageEvictionsTotal))
	fmt.Fprintf(table, "queries\t%d pages hit, %d missed; budget %s of %s\n", stats.PageHitsTotal, stats.PageMissesTotal,
		share(stats.QueryReservedBytes, stats.QueryBudgetBytes), config.FormatSize(stats.QueryBudgetBytes))
	fmt.Fprintf(table, "copies\t%s restored, %d pages failed, %s saved\n", config.FormatSize(stats.LoadBytesTotal), stats.LoadFailuresTotal, config.FormatSize(stats.SaveBytesTotal))
	fmt.Fprintf(table, "held\t%d leases, %d reservations; stalled %s, settling %s, quarantined %s\n", stats.Leases, stats.Reservations,
		config.FormatSize(stats.StalledBytes), config.FormatSize(stats.SettlingBytes), config.FormatSize(stats.QuarantinedBytes))
	if s.SSD != nil {
		printSSD(table, s)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printInstances(w, s.Cache.Instances); err != nil {
		return err
	}
	return printSessions(w, s.Cache.Sessions)
}

// printSSD adds the lines of the SSD tier.
func printSSD(table io.Writer, s admin.Status) {
	stats, cached := s.SSD.Stats, s.Cache.Stats
	fmt.Fprintf(table, "ssd\t%s stored in %s, %d pages (%d retained); %d found at the start, %d records of it not used\n",
		config.FormatSize(stats.StoredBytes), config.FormatSize(stats.PayloadBytes), sum(stats.Pages), stats.Pages["retained"], stats.RecoveredPages, sum(stats.RecoveryProblems))
	fmt.Fprintf(table, "ssd reads\t%d pages (%s), %d failed, %d waiting, %d running; %d of the pages hit\n", stats.ReadPagesTotal, config.FormatSize(stats.ReadBytesTotal),
		sum(stats.ReadFailuresTotal), sum(stats.ReadQueuePages), stats.ReadInflight, cached.PageHitsTierTotal)
	fmt.Fprintf(table, "ssd writes\t%d pages (%s), %d failed, %d not taken, %d waiting, %d running; %d evicted\n", stats.WritePagesTotal, config.FormatSize(stats.WriteBytesTotal),
		sum(stats.WriteFailuresTotal), sum(stats.WriteSkipsTotal), stats.WriteQueuePages, stats.WriteInflight, sum(stats.EvictionsTotal))
	fmt.Fprintf(table, "ssd checks\t%d pages by the scrubber, %d by verifications; %d damaged (%d found by reads, %d by the scrubber, %d by verifications)\n",
		stats.ScrubPagesTotal, stats.VerifyPagesTotal, sum(stats.DamagedPagesTotal),
		stats.DamagedPagesTotal[ssd.FoundByRead], stats.DamagedPagesTotal[ssd.FoundByScrub], stats.DamagedPagesTotal[ssd.FoundByVerify])
	for _, v := range s.SSD.Volumes {
		fmt.Fprintf(table, "ssd folder\t%s %s, %s of %s for pages; %s reserved; by %s\n", oneLine(v.Name), v.State, share(v.UsedBytes, v.PayloadBytes),
			config.FormatSize(v.PayloadBytes), config.FormatSize(v.CapacityBytes), engine(v))
	}
}

// engine is who does the I/O of a folder, and why.
func engine(v ssd.VolumeStatus) string {
	if v.Engine == "" {
		return "nobody"
	}
	return oneLine(v.Engine) + " (" + oneLine(strings.TrimPrefix(v.EngineReason, v.Engine+": ")) + ")"
}

func populated(p admin.Pool) string {
	if p.PopulatedBytes == p.ConfiguredBytes {
		return "all populated"
	}
	return fmt.Sprintf("%s populated, %d of %d arenas", share(p.PopulatedBytes, p.ConfiguredBytes), p.PopulatedArenas, p.Arenas)
}

func printInstances(w io.Writer, instances []cache.InstanceStatus) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nINSTANCE\tSTATE\tPAGE\tPAGES\tLEASES\tRANK\tPID\tBACKEND\tARENAS\tCOMMAND\n")
	if len(instances) == 0 {
		fmt.Fprintln(table, "none")
	}
	for _, inst := range instances {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d", shorten(inst.Instance), inst.State, config.FormatSize(inst.PageBytes), inst.NamespacePages, inst.Leases)
		for i, rank := range inst.Ranks {
			if i > 0 {
				fmt.Fprint(table, "\t\t\t\t")
			}
			command := rank.Command
			if rank.PID == 0 {
				command = "(vacant)"
			}
			fmt.Fprintf(table, "\t%d\t%d\t%s\t%d\t%s\n", rank.Rank, rank.PID, shorten(rank.Backend), rank.MappedArenas, shorten(command))
		}
	}
	return table.Flush()
}

func printSessions(w io.Writer, sessions []cache.SessionStatus) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nSESSION\tSTATE\tROLE\tPID\tQUERIES\tLEASES\tLEASED\tRESERVATIONS\tNAME\tCOMMAND\n")
	if len(sessions) == 0 {
		fmt.Fprintln(table, "none")
	}
	for _, s := range sessions {
		state := s.State
		if s.Stalled {
			state += ", stalled"
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%d\t%d\t%s\t%d\t%s\t%s\n", s.Session, state, s.Role, s.PID, s.Operations, s.Leases,
			config.FormatSize(s.LeasedBytes), s.Reservations, shorten(s.Name), shorten(s.Command))
	}
	return table.Flush()
}

// share is a size and what part of a whole it is.
func share(part, whole uint64) string {
	if whole == 0 {
		return config.FormatSize(part)
	}
	return fmt.Sprintf("%s (%.1f %%)", config.FormatSize(part), 100*float64(part)/float64(whole))
}

func sum(counts map[string]uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// harmless takes out what would move a terminal's cursor or change its colours: an error may say what an engine or a file said.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// oneLine takes out what would break a table.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// shorten fits text into a column and takes out what would break the table.
func shorten(text string) string {
	text = oneLine(text)
	if runes := []rune(text); len(runes) > commandColumns {
		return string(runes[:commandColumns-3]) + "..."
	}
	return text
}
