// Package admin is the API for operators, on a listener of its own: how a
// request was placed, the policies, which are uploaded, bound and taken back,
// and the cluster: its members, their health, changes of membership,
// snapshots, and a bundle for whoever has to find a fault. It answers in JSON
// and shows no text of requests.
//
// It does not authenticate, so it belongs on a loopback address, which
// [CheckAddress] makes sure of. What a web page in a browser here could send is
// refused: requests by another host's name, and changes without a header that
// pages cannot set.
//
// What a change means is decided behind [Cluster] and [Policies], which
// cmd/internal/assemble fulfils; a gateway's own readiness and metrics are the
// root package's, those of a process without a client API are served here.
package admin
