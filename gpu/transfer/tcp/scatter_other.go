//go:build !unix

package tcp

import "github.com/yardmaster/yardmaster/gpu/transfer"

func (st *stream) scatter(l *transfer.Landing) error { return st.copyIn(l) }
