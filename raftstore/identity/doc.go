// Package identity gives a node its name in the cluster and proves the names
// of others: TLS 1.3 in both directions, on every connection between nodes.
//
// # Who vouches
//
// Usually the cluster token. It is 32 random bytes in a file; the key of a
// certificate authority is derived from it, the same on every node, so a node
// that holds the token issues its own short-lived certificate and needs to ask
// nobody. Whoever holds the token is a member, under any name: the token keeps
// strangers out, it does not keep members apart.
//
// Or the operator's own authority: files with certificate, key and trusted
// authorities. Then a node can only bear the name that it was given.
//
// The first DNS name of a certificate is the node's id. A dialler demands the
// id that it dials, a listener learns it.
//
// # Changing the secret
//
// All files are read again every few seconds, so nothing restarts. The token
// file may hold several tokens, one a line: the first issues, all are trusted.
// To rotate: append the new token on every node, then move it to the first
// line on every node, then remove the old one on every node, and let a minute
// pass between the steps. Removing a token ends the connections that it
// vouched for; in this order none are left by then but old ones, and they are
// made anew at once. A file that makes no sense is reported and the last good
// one stays in use.
//
// Package identity opens no sockets. Package transport does.
package identity
