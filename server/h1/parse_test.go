package h1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzScan holds that a head which is taken for plain means the same to
// net/http, and that splitting it changes nothing.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n",
		"POST /fast HTTP/1.1\r\nhost: [::1]:80\r\ncontent-length: 0\r\nX-A: b\r\nx-a: \tc \r\nConnection: close\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n folded\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x/y\r\nContent-Length: 02\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(s), 7)
	}
	posts := map[string]http.Handler{"/fast": http.NotFoundHandler()}
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		end, v := scan(b, 0, posts)
		if cut > 0 && cut < len(b) {
			_, first := scan(b[:cut], 0, posts)
			if first == more {
				if e, again := scan(b, cut, posts); again != v || e != end {
					t.Fatalf("in one: %v %d; in two: %v %d", v, end, again, e)
				}
			}
		}
		if v != plain {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(b[:end]), bytes.NewReader(nil))))
		if err != nil {
			t.Fatalf("net/http refuses: %v", err)
		}
		c := &conn{ctx: t.Context()}
		got := c.request.build(c, b[:end])
		if got.Host != want.Host || got.ContentLength != want.ContentLength || got.URL.String() != want.URL.String() || got.Close != want.Close || got.Method != want.Method {
			t.Fatalf("%+v\n%+v", got, want)
		}
		if d := cmp.Diff(want.Header, got.Header); d != "" {
			t.Fatal(d)
		}
	})
}
