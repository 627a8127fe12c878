package main

var mutants = []mutant{
	{
		name:  "fill without a lease",
		edits: []edit{{"cache/lua/fill.lua", "if not holds(ARGV[1]) then", "if false then"}},
	},
	{
		name: "fill the local tier without a generation",
		edits: []edit{{
			"cache/fill.go", "if stamp != c.client.stamps.now(f.hash) || f.epoch != c.client.epoch.Load() {",
			"if stamp, f.epoch = c.client.stamps.now(f.hash), c.client.epoch.Load(); false {",
		}},
	},
	{
		name:  "join a disowned flight",
		edits: []edit{{"cache/flight.go", "if f.epoch == mine.epoch && int32(f.stamp-mine.stamp) >= 0 {", "if true {"}},
	},
	{
		name:  "reuse a flight that others know",
		edits: []edit{{"cache/flight.go", "if f.done == nil && !f.shared {", "if f.done == nil || f.shared {"}},
		test:  "TestAFlightThatOthersKnowIsNotReused$",
	},
	{
		name:  "a gap that leaves flights standing",
		edits: []edit{{"cache/flight.go", "f.epoch == mine.epoch && ", ""}},
		test:  "TestAGapDisownsFlights$",
	},
	{
		name:  "a gap that leaves captured generations standing",
		edits: []edit{{"cache/fill.go", " || f.epoch != c.client.epoch.Load() {", " {"}, {"cache/fill.go", "e.stamp, e.epoch, e.expires = f.key, stamp, f.epoch,", "e.stamp, e.epoch, e.expires = f.key, stamp, c.client.epoch.Load(),"}},
		test:  "TestAGapVoidsWhatIsBeingRead$",
	},
	{
		name:  "no action on a gap",
		edits: []edit{{"cache/client.go", "Gap: func(string) { c.epoch.Add(1) }", "Gap: func(string) {}"}},
	},
	{
		name:  "no action on a new subscription",
		edits: []edit{{"invalidation/receive.go", "		b.gap(CauseSubscribed)\n", ""}},
		test:  "TestC42",
	},
	{
		name:  "no heartbeat",
		edits: []edit{{"internal/subscribe/loop.go", "case silent < l.config.Silence:", "case silent < l.config.Silence || missing == 0:"}},
		test:  "TestC39",
	},
	{
		name:  "local first, then Redis",
		edits: []edit{{"cache/write.go", "		c.owe(sequence, owed...)\n		c.moveAll(targets)\n", "		c.owe(sequence, owed...)\n"}},
	},
	{
		name: "message before delete",
		edits: []edit{{
			"cache/filling.go", "		commands[i] = deleteScript.Command(ctx, key, messages[i].Channel, messages[i].Payload)\n",
			"			_ = r.client.write.Do(ctx, rediscall.NewCommand(ctx, \"publish\", messages[i].Channel, messages[i].Payload))\n" +
				"			commands[i] = deleteScript.Command(ctx, key, \"\", \"\")\n",
		}},
	},
	{
		name:  "fill after a Redis error",
		edits: []edit{{"cache/flow.go", "		case f != nil && a.withoutRedis():\n", "		case f != nil && a.why == WhyBypassed:\n"}},
		test:  "TestRule3_RedisIsFilledOnlyUnderALiveLease$",
	},
	{
		name:  "one token per process",
		edits: []edit{{"cache/frame.go", "	binary.LittleEndian.PutUint64(t[:8], rand.Uint64())\n	binary.LittleEndian.PutUint64(t[8:], rand.Uint64())\n", "	binary.LittleEndian.PutUint64(t[:8], processToken)\n"}, {"cache/frame.go", "func (t token) writers() bool", "var processToken = rand.Uint64()\n\nfunc (t token) writers() bool"}},
		test:  "TestRule3_RedisIsFilledOnlyUnderALiveLease$",
	},
	{
		name:  "no message",
		edits: []edit{{"cache/lua/delete.lua", "return {1, t, publish(ARGV[1], ARGV[2])}", "return {1, t, ''}"}},
	},
	{
		name:  "a write that tells nobody",
		edits: []edit{{"cache/lua/fill.lua", "return {1, t, tell and publish(ARGV[6], ARGV[7]) or ''}", "return {1, t, ''}"}},
	},
	{
		name:  "a message that disowns no flight and no entry",
		edits: []edit{{"cache/cache.go", "				c.client.stamps.move(c.keys.hashEncoded(key))\n", ""}},
	},
	{
		name:  "a message that disowns nothing, on a cluster",
		edits: []edit{{"cache/cache.go", "				c.client.stamps.move(c.keys.hashEncoded(key))\n", ""}},
		on:    "cluster",
	},
	{
		name:  "a batch that leaves keys out",
		edits: []edit{{"cache/cache.go", "				values[f.key], _ = c.own(a.value, nil)\n", "				if a.tier != TierRedis {\n					values[f.key], _ = c.own(a.value, nil)\n				}\n"}},
	},
	{
		name:  "an unconfirmed delete is forgotten",
		edits: []edit{{"cache/unconfirmed.go", "return ok || u.until > now", "return false"}},
	},
	{
		name:  "deaf, and the local tier keeps as ever",
		edits: []edit{{"cache/fill.go", "		ttl = min(ttl, c.client.config.DegradedTTL)\n", ""}},
		test:  "Degraded",
	},
}
