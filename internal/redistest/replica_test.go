package redistest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-nearside/nearside/internal/redistest"
)

func TestReplicaHasTheDataAndFollows(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	mustSet(t, master, "before", "v")
	replica := master.Replica(t)
	wantValue(t, replica, "before", "v")

	mustSet(t, master, "after", "v")
	replica.CatchUp(t)
	wantValue(t, replica, "after", "v")
	if err := replica.Admin().Set(ctx, "k", "v", 0).Err(); !redis.HasErrorPrefix(err, "READONLY") {
		t.Errorf("SET on the replica: %v", err)
	}
	second := replica.Replica(t)
	wantValue(t, second, "after", "v")
}

func TestReplicaSurvivesRestarts(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := master.Replica(t)
	mustSet(t, master, "k", "v")
	replica.RestartEmpty(t)
	replica.CatchUp(t)
	wantValue(t, replica, "k", "v")

	master.RestartEmpty(t) // CatchUp does not take the link to the dead master for one to the living
	replica.CatchUp(t)
	wantAbsent(t, replica, "k")
}

func TestReplicationCutAndHealed(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := master.Replica(t)
	mustSet(t, master, "k", "old")
	replica.CatchUp(t)
	replica.CutReplication(t)
	mustSet(t, master, "k", "new")
	wantValue(t, replica, "k", "old")
	replica.HealReplication(t)
	wantValue(t, replica, "k", "new")
}

func TestReplicaMethodsFailClearly(t *testing.T) {
	server := redistest.Shared(t)
	replica := server.Replica(t)
	for _, c := range []struct {
		want string
		call func(testing.TB)
	}{
		{"is not a replica", server.CatchUp},
		{"replicas that Replica makes", server.CutReplication},
		{"replicas that Replica makes", server.HealReplication},
	} {
		f := new(fakeTB)
		if out := f.run(func() { c.call(f) }); !f.failed || !strings.Contains(out, c.want) {
			t.Errorf("failed %v with %q; want %q", f.failed, out, c.want)
		}
	}

	defer redistest.ShortenPatience(20 * time.Millisecond)()
	replica.CutReplication(t)
	f := new(fakeTB)
	if out := f.run(func() { replica.CatchUp(f) }); !f.failed || !strings.Contains(out, "the replica as far as its master") {
		t.Errorf("failed %v with %q", f.failed, out)
	}
}
