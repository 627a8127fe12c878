package invalidation

// Forge makes the payload of a message of another publisher, that tells of numbers it never sent.
func Forge() string {
	m := message{kind: lastMessage, from: newPublisher(), number: 3, first: 1}
	return string(m.append(nil))
}

// Channel returns the channel that all buses of a namespace share.
func (b *Bus) Channel() string { return b.channel }
