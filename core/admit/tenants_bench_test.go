package admit

import "testing"

// A request of a tenant that comes while 4,000 others are served.
func BenchmarkVisitAmongMany(b *testing.B) {
	tenants := NewTenants()
	for tenant := range uint64(4000) {
		tenants.Visit(tenant).Serve(100, 0, 0)
	}
	for b.Loop() {
		v := tenants.Visit(1 << 40)
		_ = v.Standing()
		v.Serve(100, 10, 10)
		v.End()
	}
}
