// Package mq is the vocabulary of RocketMQ: request and response codes, fields of headers, names, bodies in JSON as the Java
// original writes and reads them, and messages as they are stored. It knows neither connections nor files, and decides nothing.
// Start at codes.go for what is asked, at bodies.go for what is said, at Message for what is kept.
package mq
