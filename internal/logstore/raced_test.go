//go:build race

package logstore

// raced: the race detector is on, with which nothing takes the time that it takes.
const raced = true
