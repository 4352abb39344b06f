// The mesh on the physical slice, with what crosses each link.

function meshSection(sides) {
  return section("mesh", ["Mesh", "The mesh on the slice"], pair(sides, (side) => side.data.mesh_picture ? picture(side.data.mesh_picture, "The slice, its links and what crosses them") : note(side.data.no_mesh_picture ?? "Not known: there is no mesh, or no slice.")));
}
