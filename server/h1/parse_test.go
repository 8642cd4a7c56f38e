package h1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzScan holds that a head which is taken for plain or ordinary means the same
// to net/http, and that splitting it changes nothing.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n",
		"POST /fast HTTP/1.1\r\nhost: [::1]:80\r\ncontent-length: 0\r\nX-A: b\r\nx-a: \tc \r\nConnection: close\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n folded\r\n\r\n",
		"POST /fast HTTP/1.1\r\nHost: x/y\r\nContent-Length: 02\r\n\r\n",
		"GET / HTTP/1.1\r\n\r\n",
		"GET /v1/models?a=b HTTP/1.1\r\nHost: x\r\nKeep-Alive: 5\r\n\r\n",
		"PUT /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n",
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
		if v != plain && v != ordinary {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(b[:end]), bytes.NewReader(nil))))
		if v == ordinary {
			if err == nil {
				checkOrdinary(t, b[:end], want)
			}
			return // what net/http refuses it gets, to say so
		}
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

// checkOrdinary holds that both read the same of a head: where the request goes,
// how long its body is, and whether the connection goes on.
func checkOrdinary(t *testing.T, head []byte, want *http.Request) {
	_, rest, _ := bytes.Cut(head, crlf)
	f, ok := survey(rest)
	if !ok || want.ProtoMajor != 1 || want.ProtoMinor != 1 || want.Host == "" || want.URL.Host != "" && !bytes.Contains(head, []byte(" //")) {
		t.Fatalf("%+v: %+v", f, want)
	}
	if chunked := want.ContentLength == -1; chunked != f.chunked || !f.length && !chunked && want.ContentLength != 0 {
		t.Fatalf("%+v: length %d", f, want.ContentLength)
	}
	if want.Header.Get("Upgrade") != "" || len(want.Trailer) > 0 {
		t.Fatalf("%+v", want)
	}
}

func BenchmarkScan(b *testing.B) {
	head := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\nContent-Type: application/json\r\n" +
		"User-Agent: OpenAI/Python 1.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Os: Linux\r\nX-Stainless-Retry-Count: 0\r\nAuthorization: Bearer key\r\nContent-Length: 200\r\nConnection: keep-alive\r\n\r\n")
	posts := map[string]http.Handler{"/v1/chat/completions": http.NotFoundHandler()}
	for b.Loop() {
		if _, v := scan(head, 0, posts); v != plain {
			b.Fatal(v)
		}
	}
}
