// group_index: the linear workgroup number of a grid that is folded over x and y

fn group_index(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.x + id.y * count.x;
}
