package schema

// Messages is every frame of ABI 5 in type order. Types 42 and 43 are kept for prepare and claim.
var Messages = []Message{
	{1, "hello", Client, "welcome or error", "First frame of a session.", []Field{
		{"abi", U16, "the client's ABI"},
		{"role", RoleOf, "what the session is for"},
		{"name", String, "client name and version, for status and logs"},
	}},
	{2, "welcome", Manager, "none", "The session is open.", []Field{
		{"abi", U16, "the Manager's ABI"},
		{"incarnation", Bytes, "one life of the Manager"},
		{"token", Bytes, "names this session in a later resume"},
		{"frame_bytes_max", U32, "largest frame, bytes"},
		{"operation_keys_max", U32, "most keys of one operation"},
		{"session_operations_max", U32, "operations that a session may have outstanding"},
		{"pool_bytes", U64, "configured pool, bytes"},
	}},
	{3, "error", Manager, "none", "The call with this id failed; with id zero the session is closed next.", []Field{
		{"status", StatusOf, "why"},
		{"text", Text, "what happened, to which thing, and what to do"},
	}},
	{4, "done", Manager, "none", "The call with this id succeeded.", []Field{
		{"value", U64, "a number that the call's row explains, else zero"},
	}},

	{10, "attach", Client, "done or error", "A process that copies joins an instance as one rank; done carries the number of attached ranks. Arenas follow as pushes.", []Field{
		{"instance", String, "instance id"},
		{"rank", U16, "this rank"},
		{"world", U16, "ranks of the instance"},
		{"storage", Bool, "1 when the rank stores bytes of its own, 0 when it only restores replicated content"},
		{"slice_bytes", U64, "unpadded bytes of this rank's slice of one page; zero without storage"},
		{"numa", I16, "NUMA node of the rank's device, -1 when unknown"},
		{"writer", WriterOf, "who writes the rank's slices"},
		{"backend", String, "transfer backend of the rank"},
		{"epoch", U64, "epoch of the instance's namespace, 0 at first"},
		{"facts", Facts, "namespace facts, equal on all ranks"},
	}},
	{11, "detach", Client, "done or error", "The session has no copy running and gives everything of the instance back.", []Field{
		{"instance", String, "instance id"},
	}},
	{12, "arena", Manager, "none", "Push with exactly one descriptor: a populated arena that the session may map.", []Field{
		{"arena", U16, "arena id"},
		{"node", I16, "NUMA node, -1 when not placed"},
		{"bytes", U64, "size of the arena"},
	}},
	{13, "mapped", Client, "none", "The rank mapped the arena and registered it with its device, or could not.", []Field{
		{"arena", U16, "arena id"},
		{"ok", Bool, "1 when pages of the arena may be named to this rank"},
		{"text", Text, "why not"},
	}},
	{14, "register", Client, "registered or error", "A scheduler of an instance asks for its namespace; not_ready until every rank attached.", []Field{
		{"instance", String, "instance id"},
		{"rank", U16, "the rank that this session schedules for, or AllRanks when it schedules the whole instance"},
	}},
	{15, "registered", Manager, "none", "Namespace handle and page geometry.", []Field{
		{"namespace", U32, "handle, valid on this Manager incarnation"},
		{"epoch", U64, "epoch of the namespace"},
		{"page_bytes", U64, "padded footprint of one page over all parts"},
		{"budget_bytes", U64, "bytes that the leases of one instance may hold"},
		{"part_bytes", Sizes, "padded bytes of each part of a page, one part a NUMA node"},
		{"slices", Slices, "where each storage rank's slice lies in its part"},
	}},
	{16, "epoch", Client, "registered or error", "A new epoch of the instance's namespace: old pages are unreachable at once.", []Field{
		{"instance", String, "instance id"},
		{"epoch", U64, "64 random bits chosen by the scheduler"},
	}},
	{17, "resume", Client, "resumed or error", "A process that reconnected says what of its old session it still uses; the rest of that session is closed.", []Field{
		{"token", Bytes, "token of the old session"},
		{"leases", IDs, "leases still used"},
		{"reservations", IDs, "reservations still used"},
	}},
	{18, "resumed", Manager, "none", "What the new session holds from the old one.", []Field{
		{"leases", IDs, "leases taken over"},
		{"reservations", IDs, "reservations taken over"},
	}},
	{19, "private", Client, "registered, done or error", "Opens (or drops) the session's private one-slice namespace for the golden round trip, outside metrics and LRU.", []Field{
		{"open", Bool, "1 opens, 0 drops"},
		{"slice_bytes", U64, "unpadded bytes of the slice"},
	}},

	{20, "query", Client, "result or error, on the last part", "Asks for the longest contiguous prefix of the keys; earlier parts are one-way.", []Field{
		{"operation", U64, "chosen by the client, increasing within a session; where the ranks schedule an instance together, one number names one operation on all of them, and a number that a rank passed without asking is one that it skipped"},
		{"revision", U32, "starts at 1"},
		{"part", U16, "index of this part"},
		{"parts", U16, "number of parts"},
		{"namespace", U32, "handle"},
		{"group", U16, "cache group"},
		{"instance", String, "instance id"},
		{"request", String, "the engine's request id, for the timeline"},
		{"keys", Keys, "keys of this part, in prefix order"},
	}},
	{21, "result", Manager, "none", "State of a query. Long results come in parts with the same id.", []Field{
		{"operation", U64, "operation of the query or reserve"},
		{"revision", U32, "its revision"},
		{"outcome", OutcomeOf, "state of the query"},
		{"cut", Bool, "1 when the demand was cut to the longest prefix that fits the budget"},
		{"part", U16, "index of this part"},
		{"parts", U16, "number of parts"},
		{"pages", U32, "pages that the lease covers, over all parts"},
		{"not_mapped", U32, "pages found but left out because a rank has not registered their arena"},
		{"lease", U64, "zero when no page is leased"},
		{"expected_us", U32, "while preparing: microseconds until the whole prefix is in memory as the device does now, zero when that is not known"},
		{"missing", U32, "while preparing: pages that this brings, which the engine computes when it does not wait"},
		{"runs", Runs, "locations, part by part of the page, in prefix order"},
	}},
	{22, "poll", Client, "result or error", "Reads the state of a query; never starts or restarts work.", []Field{
		{"operation", U64, "operation of the query or reserve"},
		{"revision", U32, "its revision"},
	}},
	{23, "cancel", Client, "none", "Drops interest in a query; a lease that it holds and that was not begun is released.", []Field{
		{"operation", U64, "operation of the query or reserve"},
		{"revision", U32, "its revision"},
	}},
	{24, "notice", Manager, "none", "A hint that something completed; the polled state is the truth.", []Field{
		{"topic", TopicOf, "what the notice is about"},
		{"id", U64, "operation or reservation"},
		{"revision", U32, "revision of the operation, else zero"},
	}},
	{25, "begin", Client, "none", "The first pages of the lease will be copied by this consumer; the rest is released for it.", []Field{
		{"lease", U64, "lease id"},
		{"rank", U16, "consumer, or AllRanks"},
		{"pages", U32, "pages begun"},
	}},
	{26, "release", Client, "none", "Gives an unbegun lease back.", []Field{
		{"lease", U64, "lease id"},
		{"rank", U16, "consumer, or AllRanks"},
	}},
	{27, "revoke", Manager, "none", "Asks for an unbegun lease back; answered by revoked.", []Field{
		{"lease", U64, "lease id"},
	}},
	{28, "revoked", Client, "none", "Answer to revoke.", []Field{
		{"lease", U64, "lease id"},
		{"yielded", Bool, "1 when the lease is given back, 0 when it is in use"},
	}},
	{29, "restored", Client, "none", "Terminal report of one consumer's copy of some pages of a begun lease.", []Field{
		{"lease", U64, "lease id"},
		{"rank", U16, "the consumer that copied"},
		{"ok", Bool, "1 when every byte arrived"},
		{"bytes", U64, "bytes that arrived"},
		{"ranges", Ranges, "pages of the lease"},
	}},

	{30, "reserve", Client, "reserved or error, on the last part", "Asks for extents to publish pages into; earlier parts are one-way.", []Field{
		{"operation", U64, "chosen by the client, increasing within a session; where the ranks schedule an instance together, one number names one operation on all of them, and a number that a rank passed without asking is one that it skipped"},
		{"revision", U32, "starts at 1"},
		{"part", U16, "index of this part"},
		{"parts", U16, "number of parts"},
		{"namespace", U32, "handle"},
		{"group", U16, "cache group"},
		{"instance", String, "instance id"},
		{"keys", Keys, "keys of this part, in prefix order"},
	}},
	{31, "reserved", Manager, "none", "Grants of a reserve. Long answers come in parts with the same id.", []Field{
		{"operation", U64, "operation of the query or reserve"},
		{"revision", U32, "its revision"},
		{"part", U16, "index of this part"},
		{"parts", U16, "number of parts"},
		{"pages", U32, "granted pages, over all parts"},
		{"reservation", U64, "zero when nothing was granted"},
		{"grants", Grants, "one answer a key, run-length coded, in key order"},
		{"runs", Runs, "locations of the granted pages, part by part of the page, in key order"},
	}},
	{32, "committed", Client, "none", "The rank's slices of these granted pages are complete in the arena.", []Field{
		{"reservation", U64, "reservation id"},
		{"rank", U16, "storage rank"},
		{"ranges", Ranges, "ordinals of granted pages"},
	}},
	{33, "abandoned", Client, "none", "The rank's slices of these granted pages will not be written, and no copy into them runs.", []Field{
		{"reservation", U64, "reservation id"},
		{"rank", U16, "storage rank, or AllRanks for slices that were never handed to a rank"},
		{"ranges", Ranges, "ordinals of granted pages"},
	}},

	{40, "warm", Client, "warmed or error, on the last part", "Hints at the prefix of a request that waits in the engine's queue, so that its pages may be read ahead of the query; earlier parts are one-way. Promises nothing and leases nothing.", []Field{
		{"ticket", U64, "chosen by the client, increasing within a session"},
		{"part", U16, "index of this part"},
		{"parts", U16, "number of parts"},
		{"namespace", U32, "handle"},
		{"instance", String, "instance id"},
		{"request", String, "the engine's request id: a query of the same request ends the hint"},
		{"keys", Keys, "keys of this part, in prefix order"},
	}},
	{41, "cancel_warm", Client, "none", "Nobody waits for a hint any more: it starts no further read. One that ended meanwhile is a harmless race.", []Field{
		{"ticket", U64, "ticket of the hint"},
	}},

	{44, "stop", Client, "result or error", "Takes what is there of a query that waits or is being read: no further read starts for it, and it is ready with the leading pages that are complete.", []Field{
		{"operation", U64, "operation of the query or reserve"},
		{"revision", U32, "its revision"},
	}},
	{45, "warmed", Manager, "none", "What became of a hint.", []Field{
		{"outcome", HintOf, "accepted, complete, or why it was skipped"},
		{"pages", U32, "pages that an accepted hint brings"},
	}},

	{50, "ping", Both, "pong", "Liveness label; the id is zero.", []Field{
		{"nonce", U64, "returned by pong"},
	}},
	{51, "pong", Both, "none", "Answer to ping.", []Field{
		{"nonce", U64, "the nonce of the ping"},
	}},
}

// Enums is every closed set of numbers of ABI 5.
var Enums = []Enum{
	{"Role", "What a session is for.", []Value{
		{"scheduler", 1, "queries, leases and reserves for an instance"},
		{"worker", 2, "attaches as a rank and copies"},
		{"tool", 3, "neither: probes, tests and command line"},
	}},
	{"Writer", "Who writes a rank's slices, and so what its death leaves behind.", []Value{
		{"host", 1, "memory copies of the process: quiet at exit"},
		{"cuda", 2, "device copies; no MPS client, no child shares its device descriptors"},
		{"cuda_shared", 3, "device copies that may outlive the process: quarantined at its death"},
	}},
	{"Outcome", "State of a query.", []Value{
		{"ready", 1, "terminal: the lease covers the pages found, none when nothing was found"},
		{"waiting", 2, "no permit or budget yet"},
		{"preparing", 3, "being read from a slower tier"},
		{"busy", 4, "terminal: not admitted, an operation table is full"},
		{"stale", 5, "terminal: a newer revision or a retired operation"},
		{"yielded", 6, "terminal: the lease was revoked before it was begun"},
	}},
	{"Grant", "Answer of reserve for one key.", []Value{
		{"granted", 1, "write the page"},
		{"present", 2, "already sealed"},
		{"being_written", 3, "reserved by another operation"},
		{"no_room", 4, "no extent could be reclaimed"},
	}},
	{"Topic", "What a notice is about.", []Value{
		{"query", 1, "the query changed state"},
		{"sealed", 2, "every page of the reservation is sealed or gone"},
		{"instance", 3, "the instance was sealed: register again"},
	}},
	{"Hint", "What became of a hint: from foreground on it was skipped, whole and for this reason.", []Value{
		{"accepted", 1, "its pages are being read"},
		{"complete", 2, "there is nothing to read: what the tiers have of the prefix is in memory"},
		{"foreground", 3, "queries own bytes that are being prepared, ready or restored"},
		{"operations", 4, "the session, or all together, have as many hints or queries as they may"},
		{"oversized", 5, "larger than the share of a budget that all hints may have"},
		{"bytes", 6, "no room in a budget, or in the hints' share of it"},
		{"queue", 7, "the slower tier can queue no more reads"},
		{"no_tier", 8, "no slower tier keeps pages of the namespace"},
	}},
	{"Status", "Why a call failed; the numbers are append-only.", []Value{
		{"malformed", 1, "a frame that cannot be decoded or breaks a bound; the session closes"},
		{"wrong_abi", 2, "hello with another ABI; the session closes"},
		{"wrong_user", 3, "the peer's user is not the Manager's; the session closes"},
		{"no_liveness", 4, "the kernel gives no race-free proof that the peer lives; the session closes"},
		{"unknown", 5, "an id, handle or instance that this session does not hold"},
		{"conflict", 6, "differs from what the instance agreed on"},
		{"not_ready", 7, "not possible yet"},
		{"too_large", 8, "more keys, ranks or bytes than the bound named in the text"},
		{"busy", 9, "a table is full; try later"},
		{"stale", 10, "an operation or epoch that was replaced"},
		{"stopping", 11, "the Manager is shutting down; the session closes"},
		{"denied", 12, "not allowed for this role"},
	}},
}
